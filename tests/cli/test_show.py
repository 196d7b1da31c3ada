"""`splitveil data check`: any source, its roles, and what should be known about it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splitveil.cli import show
from splitveil.cli.catalog import ATTACKS
from splitveil.evaluation import SUITES

Check = Callable[..., str]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Look at a source in a folder of pictures: four people of 8 images each, one of which is broken."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for root, size, people in (("faces", 9, "abcd"), ("strangers", 12, "xy")):
        for person in people:
            Path(root, person).mkdir(parents=True)
            for i in range(8):
                Image.fromarray(rng.integers(0, 256, (size, size), dtype=np.uint8)).save(f"{root}/{person}/{i}.png")
    Path("faces/a/9.png").write_bytes(b"no picture")

    def check(source: str, **options: object) -> str:
        usual = {"size": 8, "skip_broken": True, "people": False, "roles": (), "as_json": False}
        show.data_check(source, **{**usual, **options})
        return capsys.readouterr().out

    return check


def test_roles_classes_and_notes_are_told(check: Check) -> None:
    said = check("faces")
    assert "faces  1×8×8  4 classes" in said
    assert "note       skipped: faces/a/9.png: is not a readable image" in said


def test_people_are_told_as_people_and_strangers_as_others(check: Check) -> None:
    said = check("faces", people=True, roles=["auxiliary=strangers"])
    assert "faces  1×8×8  4 people" in said
    assert "auxiliary       16 images of other people" in said
    assert "note       auxiliary from strangers" in said


def test_json_has_the_same_facts(check: Check) -> None:
    facts = json.loads(check("faces", people=True, roles=["auxiliary=strangers"], as_json=True))
    assert facts["image_shape"] == [1, 8, 8]
    assert facts["people"] is True
    assert facts["streamed"] is False
    assert facts["roles"]["auxiliary"] == {"images": 16, "people": 0}
    assert sum(role["images"] for role in facts["roles"].values()) == 32 + 16
    assert len(facts["notes"]) == 2


def test_every_attack_of_every_suite_is_listed():
    played = {name for make in SUITES.values() for name in make().names}
    assert played <= set(ATTACKS)
