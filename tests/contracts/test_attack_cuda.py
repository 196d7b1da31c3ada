"""What every attack must do on a GPU: run there, answer there, go on there, and solve what is solved as a CPU does.

Nothing but torch and what attacks need is imported: it runs where the command line's own packages are missing.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from splitveil.attacks import Attack, Averaged, Inverter, Knowledge, Need, Retrieval, Ridge, Seen, grant, oracle_of
from splitveil.data import Part
from splitveil.metrics import mse
from splitveil.randomness import SeededSource
from worlds.attacks import ATTACKS, enough
from worlds.linear_gaussian import world

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)

DEVICE = "cuda"
NOISY = world(side=12, features=36, noise_std=0.05)
SILENT = replace(NOISY, noise_std=0.0)
SOLVED = [Ridge(), Averaged(Ridge(), releases=4), Retrieval(k=8)]  # and not trained


class Stop(Exception):
    """Whoever watches has seen enough."""


def part(n: int, key: str, device: str) -> Part:
    return NOISY.part(n, 0, key).to(torch.device(device))


def known(attack: Attack, device: str, *, this=NOISY) -> Knowledge:
    torch.manual_seed(0)
    return grant(
        enough(attack),
        oracle=oracle_of(this.client().to(device)),
        auxiliary=part(200, "auxiliary", device),
        selection=part(40, "selection", device),
        n_classes=2,
        head=nn.Linear(36, 2).to(device),
    )


def victims(attack: Attack, device: str, *, this=NOISY) -> tuple[torch.Tensor, Seen]:
    threat, shown = enough(attack), part(30, "victims", device)
    oracle, x = oracle_of(this.client().to(device)), shown.images()
    z_sent = oracle.release(x, source=SeededSource(0, "seen"), releases=threat.releases)
    return x, Seen(z_sent, shown.labels if threat.label_known else None)


def stopped_and_resumed(attack: Attack, state: Path) -> Inverter:
    def stop(check):
        raise Stop

    with pytest.raises(Stop):
        attack.fit(known(attack, DEVICE), seed=0, watch=stop, state=state)
    return attack.fit(known(attack, DEVICE), seed=0, state=state)


@every_attack
def test_it_runs_answers_and_goes_on_there(attack, tmp_path):
    x, seen = victims(attack, DEVICE)
    inverter = attack.fit(known(attack, DEVICE), seed=0)
    x_hat = inverter(seen)
    assert x_hat.shape == x.shape
    assert x_hat.device == x.device
    assert x_hat.dtype == torch.float32
    assert torch.isfinite(x_hat).all()
    assert 0 <= x_hat.min() <= x_hat.max() <= 1
    error, prior = mse(x, x_hat).mean(), mse(x, x.mean(0).expand_as(x)).mean()
    if Need.FAMILY not in attack.needs:  # a shadow of fixed weights learns nothing
        assert error < 0.95 * prior
    again = mse(x, stopped_and_resumed(attack, tmp_path / "fit")(seen)).mean()
    torch.testing.assert_close(again, error, rtol=0.1, atol=0)  # sums in another order, in bfloat16


@pytest.mark.parametrize("attack", SOLVED, ids=lambda attack: attack.name)
def test_what_is_solved_has_the_same_answer_on_both(attack):
    answers = []
    for device in ("cpu", DEVICE):
        _, seen = victims(attack, device, this=SILENT)
        answers.append(attack.fit(known(attack, device, this=SILENT), seed=0)(seen).cpu())
    torch.testing.assert_close(*answers, atol=2e-3, rtol=0)
