"""What the machine refuses, in one line that says what to do."""

import errno
import os

import pytest

from splitveil.cli.shortage import IN_THE_WAY, told


@pytest.mark.parametrize("number", sorted(IN_THE_WAY))
def test_a_place_that_cannot_be_written_is_named_with_what_to_do(number):
    line = told(OSError(number, os.strerror(number), "runs/a/attacks/cheap/.lock"))
    assert line == f"runs/a/attacks/cheap/.lock: {os.strerror(number)}; {IN_THE_WAY[number]}"


def test_other_errors_of_files_are_told_as_they_are():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a")
    assert told(full) == str(full)
    assert told(OSError("no facts")) == "no facts"


@pytest.mark.parametrize("error", [ValueError("of ours"), RuntimeError("shapes differ")])
def test_what_is_not_the_machine_s_fault_is_raised_again(error):
    with pytest.raises(type(error), match=str(error)):
        told(error)
