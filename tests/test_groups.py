"""Tests of a group run in one process: what they share is made once, not once in each."""

import pytest


@pytest.mark.xdist_group("together")
def test_a_group_is_heeded(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput"):
        pytest.skip("one process runs them all")
    assert request.node.nodeid.endswith("@together"), (
        "this pytest hides groups from xdist: each process makes all again"
    )
