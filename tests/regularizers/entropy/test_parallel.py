"""Two processes with half the batch each: the penalty and the encoder's gradient of one process with all of it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from torch import multiprocessing as mp

from references.steps import clouds, make_step
from references.surrogates import make
from splitveil.regularizers.base import Regularizer

pytestmark = pytest.mark.xdist_group("parallel")  # what they share is made once

DIM, CLASSES, N, STEPS = 5, 3, 24, 6
NAMES = ("plain", "unlabeled", "kmeans", "mixture", "gated-pooling", "slots", "mixture-prior", "correlated")


def _train(regularizer: Regularizer, rank: int, size: int) -> tuple[Tensor, Tensor]:
    """Penalties of all steps, and the encoder after plain gradient descent on them, gradients averaged over ranks."""
    weight = torch.eye(DIM, dtype=torch.float64).requires_grad_()
    penalties = []
    for i in range(STEPS):
        x, y = clouds(N, DIM, CLASSES, seed=i)
        mine = slice(rank * N // size, (rank + 1) * N // size)
        z = x[mine] @ weight
        regularizer.fit(make_step(z.detach(), y[mine], n_classes=CLASSES, step=i))
        loss = regularizer(make_step(z, y[mine], n_classes=CLASSES, step=i)).loss
        (slope,) = torch.autograd.grad(loss, weight)
        if size > 1:
            dist.all_reduce(slope)
            slope /= size
        with torch.no_grad():
            weight -= 0.05 * slope
        penalties.append(loss.detach())
        if i == 2:
            regularizer.end_epoch(make_step(z.detach(), y[mine], n_classes=CLASSES, step=i).progress)
    return torch.stack(penalties), weight.detach()


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = {name: _train(make(name), rank, 2) for name in NAMES}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[Tensor, Tensor]]]:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(_rank, args=(str(folder),), nprocs=2)  # type: ignore[no-untyped-call]
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", NAMES)
def test_two_halves_are_one_whole(name: str, halves: list[dict[str, tuple[Tensor, Tensor]]]) -> None:
    penalties, weight = _train(make(name), 0, 1)
    assert float(penalties.abs().min()) > 0
    for half in halves:
        torch.testing.assert_close(half[name][0], penalties, rtol=0, atol=1e-10)
        torch.testing.assert_close(half[name][1], weight, rtol=0, atol=1e-10)
