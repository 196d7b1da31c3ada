"""A result survives JSON unchanged, and other files are refused in one line."""

import json
from dataclasses import replace

import pytest

from splitveil.bounds import MSE, Bound, Kind, Side
from splitveil.check import UsageError
from splitveil.evaluation import AttackResult, Flag, FlagName, InferenceResult, NotPlayed, Result
from splitveil.metrics import Interval

SPAN = Interval(0.1 + 0.2, 1e-17, 0.7)
ATTACK = AttackResult(
    attack="ridge",
    knowledge="white-box outsider",
    releases=1,
    seeds=(0, 3),
    mse=SPAN,
    psnr=SPAN,
    ssim=None,
    lpips=SPAN,
    leak=SPAN,
    train_mse=None,
    selection_mse=1 / 3,
    steps=7,
    seconds=1.5,
    peak_memory_mb=None,
    flags=(Flag(FlagName.OVERFITTED, "mse 1 on fitted images, 3 on selection images"),),
)
RESULT = Result(
    suite="cheap",
    client="client 00ff",
    data="fashion",
    data_sha256="ab",
    image_shape=(1, 28, 28),
    n_victims=10,
    seeds=(0, 3),
    prior_mse=0.06,
    attacks=(ATTACK, replace(ATTACK, attack="decoder-conv", flags=())),
    headline=ATTACK.name,
    headline_one_release=ATTACK.name,
    oracle_mse=SPAN,
    unreliable=True,
    reasons=(str(ATTACK.flags[0]),),
    not_checked=("unstable across attack seeds",),
    lpips_upsampled=True,
    device="cpu",
    versions={"torch": "2"},
    bounds=(
        Bound("local DP", "advantage", 0.3, Side.AT_MOST, Kind.PROVED, ("real arithmetic",)),
        Bound("two points", MSE, 1e-17, Side.AT_LEAST, Kind.SAMPLED, (), interval=(0.0, 1 / 3), releases=4),
    ),
    not_played=(NotPlayed("ridge (white-box insider)", "needs the private training images"),),
    inferences=(
        InferenceResult("label-probe-linear", "white-box outsider", None, SPAN, 0.1, None, 2.5, None),
        InferenceResult("classifier-on-reconstruction", "white-box outsider", ATTACK.name, SPAN, 0.1, SPAN, 1.0, 7.0),
    ),
)


def test_a_result_survives_json_unchanged(tmp_path):
    assert Result.from_json(RESULT.to_json()) == RESULT
    RESULT.save(tmp_path / "result.json")
    assert Result.load(tmp_path / "result.json") == RESULT


def test_json_holds_what_a_reader_needs_without_this_package():
    words = json.loads(RESULT.to_json())
    assert words["schema_version"] == 2
    assert words["unreliable"] is True
    assert words["attacks"][0]["flags"][0] == {"name": "train ≪ validation", "reason": ATTACK.flags[0].reason}
    assert set(words["attacks"][0]["mse"]) == {"mean", "low", "high"}
    assert [(bound["kind"], bound["side"]) for bound in words["bounds"]] == [
        ("proved", "at_most"),
        ("proved-up-to-sampling", "at_least"),
    ]


def test_a_result_of_before_it_was_kept_what_was_not_played_is_read():
    words = json.loads(RESULT.to_json())
    assert words["not_played"] == [{"name": "ridge (white-box insider)", "reason": "needs the private training images"}]
    del words["not_played"]
    assert Result.from_json(json.dumps(words)) == replace(RESULT, not_played=())


def test_the_headline_is_found_by_name():
    assert RESULT.best == ATTACK
    with pytest.raises(UsageError, match="no attack 'mine' in this result"):
        RESULT.attack("mine")


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", "3"])
def test_another_file_is_refused(text):
    with pytest.raises(UsageError, match="not a result"):
        Result.from_json(text)


def test_another_schema_is_refused():
    with pytest.raises(UsageError, match="schema 99"):
        Result.from_json(replace(RESULT, schema_version=99).to_json())


def test_a_missing_file_is_told_in_one_line(tmp_path):
    with pytest.raises(UsageError, match="no such result"):
        Result.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ("image_shape", "'image_shape' is missing"),
        ("attacks", "'attacks' is missing"),
        ("headline", "headline"),
        ("bounds", "'bounds' is missing"),
    ],
)
def test_a_result_that_is_not_whole_is_refused_in_one_line(cut, message):
    words = json.loads(RESULT.to_json())
    del words[cut]
    for text in (json.dumps(words), '{"schema_version": 2}'):
        with pytest.raises(UsageError, match=r"not a whole result of an evaluation: .*; evaluate again") as told:
            Result.from_json(text)
        assert "\n" not in str(told.value)
    with pytest.raises(UsageError, match=message):
        Result.from_json(json.dumps(words))


def test_a_flag_that_is_not_known_is_refused():
    words = json.loads(RESULT.to_json())
    words["attacks"][0]["flags"][0]["name"] = "too good"
    with pytest.raises(UsageError, match=r"not a whole result .*'too good'"):
        Result.from_json(json.dumps(words))
