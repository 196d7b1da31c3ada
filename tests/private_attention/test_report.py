import json
import re

import pytest
import torch

from splitveil.private_attention import Bounds, PolynomialFeatures, PrivacySpec, PrivateKV, Report

FEATURES = PolynomialFeatures(2, 2).taylor(1.0)


def report(*, heads: int = 1, seed: int | None = None, **spec) -> Report:
    b = PrivateKV.builder(PrivacySpec(1.0, 1e-6, **spec), Bounds(1.0, 2.0, 3.0), FEATURES, 1, heads=heads, seed=seed)
    return b.release().report()


def test_it_states_the_guarantee_and_what_it_covers() -> None:
    text = report().text()
    for words in (
        "(1, 1e-06)-differentially private",
        "any number of queries",
        "whether one row",
        "number of units is protected",
        "‖k‖ ≤ 1, ‖q‖ ≤ 2, ‖v‖ ≤ 3",
        "read off the private rows",
        "how many is not recorded",
        "Not covered",
        "4.22",
    ):
        assert words in text
    assert all(len(line) > 30 for line in text.splitlines())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"adjacency": "replace_one"}, "number of units is taken to be public"),
        ({"unit": "document", "document_rows": 2.0}, "shortened to that of 2 row(s)"),
        ({"shares": 4}, "shared by 4 memories"),
        ({"heads": 3}, "over 3 heads"),
        ({"seed": 5}, "NOT PRIVATE"),
    ],
)
def test_every_choice_shows(options: dict, words: str) -> None:
    assert words in report(**options).text()
    assert words not in report().text()


def test_json_holds_the_numbers_and_survives_a_round_trip() -> None:
    plain = json.loads(json.dumps(report().to_json()))
    assert plain["private"] is True
    assert plain["readings"]["1e-06"] == pytest.approx(1.0, rel=1e-6)
    assert plain["readings"]["1e-08"] > 1.0
    assert plain["sigma_over_sensitivity"] == pytest.approx(4.2247, rel=1e-4)
    assert int(plain["calibration"]["sensitivity2"]) == 2**70


def test_a_seeded_release_has_no_epsilon() -> None:
    assert report(seed=1).epsilon(1e-6) is None
    assert set(report(seed=1).to_json()["readings"].values()) == {None}


def test_no_number_of_rows_is_anywhere_under_add_remove() -> None:
    b = PrivateKV.builder(PrivacySpec(1.0, 1e-6), Bounds(1, 1, 1), FEATURES, 1)
    memory = b.add(torch.randn(7331, 2), torch.randn(7331, 1)).release()
    assert not re.search("7331|7,331", memory.report().text() + json.dumps(memory.report().to_json()))
