"""A recognizer names images and finds people; what chance would find is counted exactly."""

import itertools
from dataclasses import replace

import pytest
import torch

from splitveil.attacks import Gallery, Health, Recognition, chance_of_finding, recognition
from splitveil.check import UsageError
from splitveil.fitting import Plan
from worlds.small import row_images

DATA = row_images(n_train=120, n_other=90, n_classes=3, size=8)
QUICK = Recognition(batch=32, plan=Plan(steps=60, lr=5e-3, warmup=5, ema=0.8, check_every=30))


@pytest.fixture(scope="module")
def recognizer():
    return QUICK.fit(DATA.train, DATA.selection, n_classes=3)


def test_it_names_images_it_never_saw(recognizer):
    y = DATA.victims.labels
    assert (recognizer.logits(DATA.victims.images()).argmax(1) == y).float().mean() > 0.9


def test_the_same_person_is_found_among_photos(recognizer):
    gallery = Gallery(recognizer, DATA.auxiliary)
    found = [gallery.found(DATA.victims.images(), DATA.victims.labels, k=k).mean() for k in (1, 5)]
    assert found[0] > 0.8
    assert found[1] >= found[0]
    gray = torch.full_like(DATA.victims.images(), 0.5)
    assert gallery.found(gray, DATA.victims.labels, k=1).mean() < 0.5


def test_chance_is_that_of_drawing_photos():
    photos, y = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 2, 2])
    draws = list(itertools.combinations(range(6), 3))
    wanted = sum(any(photos[i] == label for i in draw) for label in y for draw in draws) / (len(draws) * len(y))
    assert chance_of_finding(photos, y, k=3) == pytest.approx(wanted)


def test_it_is_found_again_where_it_was_kept(recognizer, tmp_path):
    place = tmp_path / "judge.safetensors"
    first = QUICK.fit(DATA.train, DATA.selection, n_classes=3, kept=place)
    checks = []
    again = QUICK.fit(DATA.train, DATA.selection, n_classes=3, kept=place, watch=checks.append)
    assert not checks
    x = DATA.victims.images()
    assert torch.equal(first.logits(x), again.logits(x))
    QUICK.fit(DATA.train, DATA.selection, n_classes=3, seed=1, kept=place, watch=checks.append)
    assert checks


@pytest.mark.parametrize("place", [None, "judge.safetensors"])
def test_it_tells_whether_it_was_cut_short(place, tmp_path):
    kept = place and tmp_path / place
    brief = Recognition(batch=32, plan=Plan(steps=4, check_every=2))
    assert brief.fit(DATA.train, DATA.selection, n_classes=3, kept=kept).health == Health(steps=4, still_falling=True)
    flat = Recognition(batch=32, plan=Plan(steps=40, lr=1e-9, check_every=1, patience=2))
    ended = flat.fit(DATA.train, DATA.selection, n_classes=3, kept=kept).health
    assert not ended.still_falling
    assert 0 < ended.steps < 40


@pytest.mark.parametrize("said", [None, False, True])
def test_one_that_was_kept_is_laid_out_as_it_was_fitted(said, tmp_path):
    brief = replace(QUICK, plan=replace(QUICK.plan, steps=2, check_every=2, channels_last=said))
    for _ in range(2):  # the second is read
        found = brief.fit(DATA.train, DATA.selection, n_classes=3, kept=tmp_path / "judge")
        weight = next(value for value in found._network.parameters() if value.ndim == 4 and value.shape[1] > 1)
        assert weight.is_contiguous(memory_format=torch.channels_last) is (said is not False)


def test_a_damaged_judge_is_trained_anew(tmp_path):
    place, brief = tmp_path / "judge.safetensors", Recognition(batch=32, plan=Plan(steps=4, check_every=2))
    first = brief.fit(DATA.train, DATA.selection, n_classes=3, kept=place)
    place.write_bytes(place.read_bytes()[:-1])
    checks, x = [], DATA.victims.images()
    again = brief.fit(DATA.train, DATA.selection, n_classes=3, kept=place, watch=checks.append)
    assert checks
    assert torch.equal(first.logits(x), again.logits(x))


@pytest.mark.parametrize("batch", [32, 50, 500])
def test_every_step_gives_the_network_what_was_recorded(batch, monkeypatch):
    given, sampled = [], []
    fit = recognition.fit

    def watched(network, **options):
        sampled.extend(options["sample"])
        network.register_forward_pre_hook(lambda net, inputs: given.append(inputs) if net.training else None)
        return fit(network, **options)

    monkeypatch.setattr(recognition, "fit", watched)
    brief = Recognition(batch=batch, plan=Plan(steps=6, check_every=3))
    brief.fit(DATA.train, DATA.selection, n_classes=3)
    (sample,) = sampled
    assert len(sample) == min(batch, 120)
    assert len(given) == 6
    for (x,) in given:
        assert (x.shape, x.dtype, x.device, x.stride()) == (sample.shape, sample.dtype, sample.device, sample.stride())
        assert x.data_ptr() != sample.data_ptr()  # a replay reads the sample's memory: it is nobody else's


def test_it_compares_images_through_a_recorded_network():
    """A recording replaces the whole network's forward and works in training alone."""
    brief = Recognition(batch=32, plan=Plan(steps=2, check_every=2))
    recognizer, x = brief.fit(DATA.train, DATA.selection, n_classes=3), DATA.victims.images()
    wanted = recognizer.embed(x)
    recognizer._network.forward = None  # whoever calls it fails
    assert torch.equal(recognizer.embed(x), wanted)


def test_images_without_labels_teach_nothing():
    assert QUICK.can_learn(DATA.train)
    assert not QUICK.can_learn(DATA.train.unlabeled())
    with pytest.raises(UsageError, match="needs labeled images"):
        QUICK.fit(DATA.train.unlabeled(), DATA.selection, n_classes=3)
