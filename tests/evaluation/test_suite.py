"""Suites: what they hold, and how they fit the ground they are played on."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from splitveil.attacks import (
    Averaged,
    Box,
    DecoderAttack,
    Need,
    OptimizationAttack,
    Probe,
    Ridge,
    ShadowAttack,
    Threat,
    grant,
    oracle_of,
)
from splitveil.check import UsageError
from splitveil.cli.catalog import ATTACKS
from splitveil.data import Part
from splitveil.evaluation.pictures import lacks
from splitveil.evaluation.suite import Ground, Inquiry, Suite, Trial
from splitveil.evaluation.suites import SUITES, full, standard, suite_named

FULL = Ground(has_client=True, is_random=True, has_private=True, has_labels=True, n_auxiliary=5000, n_selection=2000)


@pytest.mark.parametrize("name", SUITES)
def test_every_trial_has_its_own_file_name(name):
    slugs = [trial.slug for trial in suite_named(name).trials]
    assert len(set(slugs)) == len(slugs)
    assert all(character.isalnum() or character == "-" for slug in slugs for character in slug)


@pytest.mark.parametrize("name", SUITES)
def test_a_full_ground_changes_nothing(name):
    assert suite_named(name).on(FULL) == suite_named(name)


@pytest.mark.parametrize("suite", [standard(), full()], ids=lambda suite: suite.name)
def test_every_decoder_that_may_ask_as_it_likes_is_played_as_insider_and_as_outsider(suite):
    asked = [trial for trial in suite.trials if isinstance(trial.attack, DecoderAttack | Averaged)]
    free = {(trial.attack, trial.threat) for trial in asked if trial.threat.box is Box.WHITE}
    alone = {
        attack.name for attack, threat in free if (attack, replace(threat, insider=not threat.insider)) not in free
    }
    once = {"decoder-residual-long-mean64", "ridge-mean4", "ridge-mean16", "ridge-mean64"}
    assert alone == (once if suite.name == "full" else set())


def test_standard_plays_every_rung_as_insider_and_outsider():
    played = {(trial.attack.name, trial.threat) for trial in standard().trials}
    for rung in ("conv", "residual", "unet"):
        assert (f"decoder-{rung}", Threat()) in played
        assert (f"decoder-{rung}", Threat(insider=True)) in played
    threats = {threat for _, threat in played}
    assert any(threat.releases > 1 for threat in threats)
    assert any(threat.label_known for threat in threats)
    assert {threat.queries for threat in threats if threat.box is Box.BLACK} == {None, 128, 1024, 4096}


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize(
    ("poorer", "gone"),
    [
        ({"is_random": False}, lambda threat: threat.releases > 1),
        ({"has_private": False}, lambda threat: threat.insider),
        ({"has_labels": False}, lambda threat: threat.label_known),
        ({"has_client": False}, lambda threat: threat.box is Box.WHITE),
        ({"n_auxiliary": 500}, lambda threat: (threat.queries or 0) > 500),
    ],
)
def test_what_cannot_be_played_is_left_out(name, poorer, gone):
    threats = [trial.threat for trial in suite_named(name).on(replace(FULL, **poorer)).trials]
    assert threats
    assert not any(gone(threat) for threat in threats)


@pytest.mark.parametrize(
    ("poorer", "reasons", "left_out"),
    [
        ({}, set(), set()),
        ({"has_private": False}, {"needs the private training images"}, {"decoder-unet (white-box insider)"}),
        (
            {"is_random": False},
            {"nothing is random, so releases are alike"},
            {"ridge-mean16 (white-box outsider, 16 releases)"},
        ),
        (
            {"has_labels": False},
            {"needs labels"},
            {
                "decoder-residual-label (white-box outsider, label known)",
                "shadow (query-free outsider)",
                "label-probe-linear (white-box insider)",
            },
        ),
        (
            {"has_own_labels": False},
            {"needs labels"},
            {"shadow (query-free outsider)", "label-probe-linear (white-box outsider)"},
        ),
        (
            {"has_head": False},
            {"needs the server's head"},
            {"decoder-residual-logits (white-box outsider, head known)"},
        ),
        (
            {"has_client": False},
            {"needs the client itself", "needs the client's architecture"},
            {"diffusion (white-box outsider)", "shadow (query-free outsider)"},
        ),
        (
            {"n_auxiliary": 1500},
            {"needs 4096 queries, there are images for 1875"},
            {"ridge (black-box-4096 outsider)"},
        ),
        (
            {"n_selection": 100},
            {"needs 4096 queries, there are images for 504", "needs 1024 queries, there are images for 504"},
            {"ridge (black-box-4096 outsider)", "ridge (black-box-1024 outsider)"},
        ),
    ],
)
def test_what_is_left_out_is_named_with_its_reason(poorer, reasons, left_out):
    ground = replace(FULL, **poorer)
    absent, played = full().left_out(ground), full().on(ground)
    assert {each.reason for each in absent} == reasons
    assert left_out <= {each.name for each in absent}
    if ground.has_client:  # else white boxes are played as black ones
        names = [each.name for each in (*played.trials, *played.inquiries, *absent)]
        assert sorted(names) == sorted(each.name for each in (*full().trials, *full().inquiries))


@pytest.mark.parametrize(
    ("shape", "reasons", "left_out"),
    [
        ((3, 11, 11), set(), set()),
        (
            (1, 10, 32),
            {"needs 11×11 pixels"},
            {"decoder-residual-ssim (white-box insider)", "decoder-residual-ssim (white-box outsider)"},
        ),
        (
            (4, 32, 32),
            {"needs 1 or 3 channels"},
            {"decoder-residual-lpips (white-box insider)", "decoder-residual-lpips (white-box outsider)"},
        ),
        (
            (1, 4, 4),
            {"needs 11×11 pixels", "needs 5 pixels a side"},
            {
                "decoder-residual-ssim (white-box insider)",
                "decoder-residual-ssim (white-box outsider)",
                "optimization-dip (white-box outsider)",
            },
        ),
    ],
)
def test_what_images_are_too_small_or_colorful_for_is_left_out(shape, reasons, left_out):
    absent = full().left_out(replace(FULL, image_shape=shape))
    assert {each.reason for each in absent} == reasons
    assert {each.name for each in absent} == left_out


@pytest.mark.parametrize("start", ["decoder", "affine"])
def test_what_stands_behind_an_attack_needs_its_images_too(start):
    """A decoder that a search does not start from needs nothing."""
    search = OptimizationAttack(start=start, decoder=DecoderAttack("conv", objective="ssim"))
    behind = (Averaged(DecoderAttack("conv", objective="ssim"), 4), ShadowAttack(decoder=search.decoder))
    small = (1, 8, 8)
    assert [lacks(each, small) for each in behind] == ["needs 11×11 pixels"] * 2
    assert lacks(search, small) == ("needs 11×11 pixels" if start == "decoder" else None)


@pytest.mark.parametrize(("insider", "n_private"), [(False, 0), (True, 0), (True, 7), (False, 7)])
@pytest.mark.parametrize(("n_auxiliary", "n_selection"), [(36, 9), (37, 9), (40, 40), (300, 60), (5, 1)])
def test_queries_are_counted_as_they_are_granted(n_auxiliary, n_selection, insider, n_private):
    """The most that fits, and no query more: grant asks as many images and fails with fewer."""
    auxiliary, selection, private = (
        Part(torch.zeros(n, 1, 2, 2, dtype=torch.uint8), torch.zeros(n).long())
        for n in (n_auxiliary, n_selection, n_private)
    )
    ground = replace(FULL, n_auxiliary=n_auxiliary, n_selection=n_selection, n_private=n_private)
    most = ground.n_queries(insider=insider)
    oracle = oracle_of(nn.Flatten())
    for queries, fits in ((most, True), (most + 1, False)):
        threat = Threat(Box.BLACK, queries=queries, insider=insider)
        suite = Suite("one", (Trial(Ridge(), threat),))
        assert (suite.left_out(ground) == ()) is fits
        with nullcontext() if fits else pytest.raises(UsageError, match="paired queries need as many images"):
            grant(threat, oracle=oracle, auxiliary=auxiliary, selection=selection, private=private)


def test_a_suite_of_which_nothing_can_be_played_says_why():
    averaged = suite_named("cheap").only(["ridge-mean16"])
    with pytest.raises(UsageError, match=r"can be played here \(nothing is random, so releases are alike\)$"):
        averaged.on(replace(FULL, is_random=False))


def test_a_function_is_attacked_as_a_black_box_with_the_same_attacks():
    white, black = standard().on(FULL), standard().on(replace(FULL, has_client=False))
    through_client = {trial.attack.name for trial in white.trials if Need.CLIENT in trial.attack.needs}
    names = {trial.attack.name for trial in white.trials} - through_client
    assert {trial.attack.name for trial in black.trials} == names
    assert through_client == {"optimization-likelihood", "optimization-tv"}


def test_full_holds_standard_and_everything_that_can_be_named():
    played, named = full(), {trial.attack.name for trial in full().trials}
    assert played.trials[: len(standard().trials)] == standard().trials
    assert named | {each.attack.name for each in played.inquiries} >= set(ATTACKS)
    threats = {trial.threat for trial in played.trials}
    assert {threat.head_known for threat in threats if threat.box is Box.QUERY_FREE} == {True, False}
    assert {threat.releases for threat in threats} == {1, 4, 16, 64}


@pytest.mark.parametrize("poorer", [{"has_own_labels": False}, {"has_labels": False}, {"has_client": False}])
def test_a_shadow_needs_labels_and_a_family(poorer):
    played = full().on(replace(FULL, **poorer))
    assert not any(trial.threat.box is Box.QUERY_FREE for trial in played.trials)


def test_without_the_server_s_head_nobody_holds_it():
    held = {trial.attack.name for trial in full().trials if trial.threat.head_known}
    assert held == {"shadow-head", "decoder-residual-logits"}
    assert not any(trial.threat.head_known for trial in full().on(replace(FULL, has_head=False)).trials)


def test_a_label_helps_only_who_has_learned_what_it_means():
    played = full().on(replace(FULL, has_own_labels=False)).trials
    assert {trial.threat.insider for trial in played if trial.threat.label_known} == {True}


def test_probes_need_labels_of_the_attacker_s_own():
    assert {each.threat.insider for each in full().on(replace(FULL, has_own_labels=False)).inquiries} == {True}
    without = full().on(replace(FULL, has_labels=False))
    assert without.inquiries == ()
    assert without.recognition is None


def test_one_attack_can_be_picked():
    picked = standard().only(["decoder-unet"])
    assert {trial.attack.name for trial in picked.trials} == {"decoder-unet"}
    assert picked.inquiries == ()
    both = standard().only(["ridge", "label-probe-mlp"])
    assert [each.attack.name for each in both.inquiries] == ["label-probe-mlp"]
    with pytest.raises(UsageError, match="asked beside an attack; pick one too"):
        standard().only(["label-probe-mlp"])
    with pytest.raises(UsageError, match="did you mean 'decoder-unet'"):
        standard().only(["decoder-unett"])


def test_two_of_one_name_are_refused():
    short, long = (DecoderAttack("conv", batch=n) for n in (8, 16))
    with pytest.raises(UsageError, match=r"suite 'mine' has decoder-conv \(white-box outsider\) twice"):
        Suite("mine", (Trial(short, Threat()), Trial(long, Threat())))
    asked = (Inquiry(Probe(), Threat()),)
    with pytest.raises(UsageError, match="has label-probe-linear"):
        Suite("mine", (Trial(short, Threat()),), inquiries=2 * asked)
    both = Suite("mine", (Trial(short, Threat()), Trial(short, Threat(Box.BLACK))), inquiries=asked)
    assert len(both.on(FULL).trials) == 2
    assert len(both.on(replace(FULL, has_client=False)).trials) == 1  # the same black box


@pytest.mark.parametrize("inquiries", [(), (Inquiry(Probe(), Threat()),)])
def test_a_suite_without_an_attack_is_refused(inquiries):
    with pytest.raises(UsageError, match="suite 'mine' has no attack; give at least one"):
        Suite("mine", (), inquiries=inquiries)


def test_an_unknown_suite_is_refused():
    with pytest.raises(UsageError, match="did you mean 'standard'"):
        suite_named("standart")


def test_a_part_of_a_suite_has_a_file_of_its_own():
    assert suite_named("cheap").file == "result.json"
    assert suite_named("cheap").only(["ridge"]).file == "result-ridge.json"
