"""What a search moves: pixels, whitened coordinates and the weights of an untrained network."""

import pytest
import torch
from torch.nn import functional as F

from splitveil.attacks.canvas import PixelCanvas, gaussian_canvas, network_canvas, total_variation
from splitveil.networks.untrained import Untrained
from splitveil.randomness import stream
from worlds.searches import WORLD


@pytest.mark.parametrize("n", [20, 400])
def test_whitened_is_the_way_back_from_painted(n):
    images = torch.rand(n, 3, 5, 5, generator=stream(0, "images"))
    canvas = gaussian_canvas(images)
    moved = 0.1 * torch.randn(4, 3, 5, 5, generator=stream(0, "moved"))
    v = canvas.whitened(moved)
    torch.testing.assert_close(canvas.paint(torch.zeros(4, 3, 5, 5), v), moved, rtol=0, atol=1e-5)
    assert (v.norm(dim=1) <= 1.001 * (v + _unseen(canvas, v)).norm(dim=1)).all()


def _unseen(canvas, v):
    """What paints nothing: what lies across the basis, along it."""
    rank = len(canvas.std)
    along = torch.randn(len(v), rank, generator=stream(1, "along")) @ canvas.basis.T
    return torch.cat([torch.zeros(len(v), rank), along], 1) if canvas.rest else torch.zeros_like(v)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 14)])
def test_every_canvas_begins_with_its_base(shape):
    """So that "no step at all" is the beginning itself, black and white pixels included."""
    base = torch.rand(5, *shape, generator=stream(0, "base")).sub(0.3).clamp(0, 1)
    images = torch.rand(50, *shape, generator=stream(0, "images"))
    network = network_canvas(shape, width=4, seed=0, device=base.device)
    for canvas in (network, gaussian_canvas(images), PixelCanvas(shape)):
        torch.testing.assert_close(canvas.paint(base, torch.zeros(5, canvas.size)), base, rtol=0, atol=1e-6)
    assert (network.paint(base, 0.1 * torch.randn(5, network.size, generator=stream(0, "v"))) - base).abs().max() > 0.01


def test_gaussian_coordinates_are_standard_normal():
    x = WORLD.part(3000, 0, "canvas").images()
    canvas = gaussian_canvas(x - x.mean(0))
    assert canvas.size == 64
    drawn = canvas.paint(torch.zeros(20_000, 1, 8, 8), torch.randn(20_000, 64, generator=stream(0))).flatten(1)
    gap = torch.cov(drawn.T) - WORLD.covariance.float()
    assert gap.norm() < 0.15 * WORLD.covariance.norm()


def test_few_images_leave_directions_that_are_all_alike():
    x = WORLD.part(40, 0, "canvas").images()
    canvas = gaussian_canvas(x - x.mean(0))
    assert len(canvas.std) == 10
    assert canvas.size == 10 + 64
    drawn = canvas.paint(torch.zeros(5000, 1, 8, 8), torch.randn(5000, canvas.size, generator=stream(0)))
    assert drawn.var(0).mean().item() == pytest.approx(x.var(0).mean().item(), rel=0.1)


def test_total_variation_is_the_loop_s():
    x = torch.rand(2, 2, 3, 4, generator=stream(0))
    wanted = torch.zeros(2)
    for n, c, i, j in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
        down = x[n, c, i + 1, j] - x[n, c, i, j] if i < 2 else 0.0
        right = x[n, c, i, j + 1] - x[n, c, i, j] if j < 3 else 0.0
        wanted[n] += (down**2 + right**2 + 1e-6) ** 0.5
    torch.testing.assert_close(total_variation(x), wanted)
    assert (PixelCanvas((2, 3, 4)).settle(x, torch.full((2, 24), 5.0)).reshape(x.shape) + x).max() <= 1


def test_untrained_networks_of_one_batch_are_networks_each_of_its_own():
    network = Untrained((3, 10, 8), width=4)
    rng = stream(0, "weights")
    weights, seed_map = torch.stack([network.draw(rng) for _ in range(3)]), network.draw_input(rng)
    painted = network(seed_map, weights)
    assert painted.shape == (3, 3, 10, 8)
    for one, of_it in zip(painted, weights, strict=True):
        h = seed_map
        for i, (n_in, n_out) in enumerate(network.layers):
            h = F.interpolate(h, size=network.sizes[min(i // 2, 2)], mode="bilinear", align_corners=False)
            layer, of_it = of_it[: n_out * (9 * n_in + 1)].reshape(n_out, -1), of_it[n_out * (9 * n_in + 1) :]
            h = F.conv2d(h, layer[:, :-1].reshape(n_out, n_in, 3, 3), layer[:, -1], padding=1)
            h = F.leaky_relu(F.instance_norm(h), 0.1) if i < len(network.layers) - 1 else h
        torch.testing.assert_close(one, h[0], atol=1e-5, rtol=1e-4)


def test_every_image_starts_from_the_same_network():
    canvas = network_canvas((1, 8, 8), width=4, seed=0, device=torch.device("cpu"))
    base = torch.full((2, 1, 8, 8), 0.3)
    one, two = canvas.paint(base, torch.zeros(2, canvas.size))
    assert torch.equal(one, two)
    assert (one - 0.3).abs().mean() < 0.1


@pytest.mark.parametrize(("side", "width"), [(16, 8), (33, 16), (32, 24)])
def test_what_a_network_s_slope_holds_is_counted(side, width):
    """All that autograd keeps, and less than as much again for the way back."""
    canvas, n = network_canvas((3, side, side), width=width, seed=0, device=torch.device("cpu")), 3
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    v = torch.zeros(n, canvas.size, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        canvas.paint(torch.full((n, 3, side, side), 0.5), v)
    numbers = sum(storage.nbytes() for storage in kept.values()) / 4 / n
    assert 0.5 * canvas.network.n_held < numbers < canvas.n_held
