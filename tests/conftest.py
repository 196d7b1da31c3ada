"""Shapes in annotations are checked while the tests run; every test starts from one thread and one seed."""

import pytest
from jaxtyping import install_import_hook

# An int is welcome where a float is asked for, as for mypy.
install_import_hook("splitveil", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

import torch  # noqa: E402


@pytest.fixture(autouse=True)
def _quiet_start() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
