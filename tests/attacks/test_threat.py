"""Threat models: names, and combinations that make no sense."""

import pytest

from splitveil.attacks import Box, Threat
from splitveil.check import UsageError


def test_every_threat_has_its_own_name_and_file_name():
    threats = [
        Threat(),
        Threat(insider=True),
        Threat(releases=4),
        Threat(label_known=True),
        Threat(Box.BLACK),
        Threat(Box.BLACK, queries=128),
        Threat(Box.BLACK, queries=128, releases=4),
        Threat(Box.QUERY_FREE),
    ]
    assert len({threat.name for threat in threats}) == len(threats)
    assert len({threat.slug for threat in threats}) == len(threats)
    assert all(character.isalnum() or character == "-" for threat in threats for character in threat.slug)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queries": 10}, "a black box answers"),
        ({"box": Box.QUERY_FREE, "insider": True}, "grants nothing of it"),
        ({"releases": 0}, "releases must be"),
        ({"box": Box.BLACK, "queries": 2}, "queries must be"),
    ],
)
def test_a_threat_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Threat(**settings)
