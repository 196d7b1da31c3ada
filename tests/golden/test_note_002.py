"""The worked example of note 002, computed from its points; the note prints other numbers in places.

Corrected by hand and by scikit-learn: with τ = 0.002 and ε = 1e-6, K-means splits class 1 in 2 + 2 points and classes 2
and 3 in 1 + 3. The note's class 1 is right (v = 0.00625, 0.003125, v̂ = 0.0046875), its 0.846 should be 0.852, and its
total 0.564 should be 1.2008. With τ = 0.05 every penalty is zero. For attention, without LayerNorm (which turns a
2-vector into ±1) and with V = U = I, w = (1, 1): v = 0.01747, 0.02650, 0.02433 and R(1) = 2.167.
"""

import math

import pytest
import torch
from torch import Tensor

from references import entropy as slow
from references.steps import make_step
from splitveil.mixtures import kmeans
from splitveil.regularizers.entropy import Charging, KMeans, Log, Plain, Surrogate, Threshold
from splitveil.regularizers.entropy.groupings.gated_pooling import segment_softmax
from splitveil.regularizers.entropy.hinge import Pool
from splitveil.regularizers.entropy.members import assemble
from splitveil.regularizers.entropy.moments import moments

POINTS = torch.tensor(
    [
        [[0.0, 0.0], [0.2, 0.1], [-0.1, 0.05], [0.15, -0.05]],
        [[1.0, 1.0], [1.2, 1.1], [0.8, 0.9], [1.1, 0.95]],
        [[1.0, -1.0], [0.8, -0.9], [1.1, -1.2], [0.9, -1.05]],
    ],
    dtype=torch.float64,
)
Z, Y = POINTS.flatten(0, 1), torch.arange(3).repeat_interleave(4)
EPS = 1e-6


def _clustered(pool: Pool) -> Surrogate:
    """K = 2 about remembered centers, with remembered weights."""
    # the note holds the trace of 2 dimensions against τ: per dimension both halve, and so does ε
    surrogate = Surrogate(
        KMeans(n_groups=2, weights="remembered"),
        hinge=Log(pool=pool, floor=EPS / 2),
        threshold=Threshold(var_threshold=0.002 / 2 / 0.01),
        charging=Charging(account="spread"),
    )
    step = make_step(Z, Y, n_classes=3, noise_std=0.1)
    surrogate.fit(step)
    surrogate.end_epoch(step.progress)
    return surrogate


def test_kmeans_splits_the_classes_as_computed() -> None:
    found = kmeans(Z, Y, n_classes=3, n_groups=2, generator=torch.Generator().manual_seed(0), tolerance=0.0)
    trace = 2 * found.var
    total = (found.weight * trace).sum(1)
    assert sorted(trace[0].tolist()) == pytest.approx([0.003125, 0.00625])
    for c in (1, 2):
        assert sorted((4 * found.weight[c]).tolist()) == [1, 3]
        assert sorted(trace[c].tolist()) == pytest.approx([0.0, 0.0105556], abs=1e-6)
    assert total.tolist() == pytest.approx([0.0046875, 0.0079167, 0.0079167], abs=1e-6)


def test_the_log_penalty_of_the_note_is_1_2008() -> None:
    surrogate = _clustered("class")
    assert float(surrogate(make_step(Z, Y, n_classes=3, noise_std=0.1)).loss) == pytest.approx(1.2008, abs=5e-5)
    first = make_step(Z[:4], Y[:4], n_classes=3, noise_std=0.1)
    assert float(surrogate(first).loss) == pytest.approx(0.852, abs=1e-3)


def test_a_hinge_for_each_group_charges_the_same_clusters_otherwise() -> None:
    """Σ_k π_k max(0, log(v_k + ε) − log(τ + ε)), as the published code has it."""
    surrogate = _clustered("before_log")
    two = [math.log(v + EPS) - math.log(0.002 + EPS) for v in (0.00625, 0.003125)]
    three = 0.75 * (math.log(0.0105556 + EPS) - math.log(0.002 + EPS))
    want = (sum(two) / 2 + 2 * three) / 3
    assert float(surrogate(make_step(Z, Y, n_classes=3, noise_std=0.1)).loss) == pytest.approx(want, abs=1e-5)


def test_above_every_spread_the_penalty_is_zero() -> None:
    surrogate = Surrogate(
        Plain(), hinge=Log(pool="before_log", floor=EPS / 2), threshold=Threshold(var_threshold=0.05 / 2 / 0.01)
    )
    assert float(surrogate(make_step(Z, Y, n_classes=3, noise_std=0.1)).loss) == 0


def _attention() -> Tensor:
    score = (Z.tanh() * Z.sigmoid()).sum(1)
    return segment_softmax(score, Y, 3)


def test_attention_weighs_and_spreads_as_computed() -> None:
    alpha = _attention()
    assert sorted(alpha[:4].tolist(), reverse=True) == pytest.approx([0.279, 0.251, 0.238, 0.232], abs=5e-4)
    members = assemble(Z, Y, n_classes=3, noise_var=0.01)
    trace = moments(Z, alpha[:, None], members.row[:, None], n_rows=3, n_groups=1).var.sum(-1)[:, 0]
    assert trace.tolist() == pytest.approx([0.01747, 0.02650, 0.02433], abs=5e-6)
    assert math.log(float(trace[0]) + EPS) - math.log(0.002 + EPS) == pytest.approx(2.167, abs=5e-4)
    torch.testing.assert_close(trace[0], slow.moments(POINTS[0], alpha[:4])[1].sum())


def test_the_gradient_of_the_variance_in_a_weight_is_the_squared_distance() -> None:
    """Appendix B: the second term of ∂v/∂α vanishes, since Σ α (z − mean) = 0."""
    alpha = _attention()[:4].detach().requires_grad_()
    share = alpha / alpha.sum()
    mean = (share[:, None] * POINTS[0]).sum(0)
    spread = (share[:, None] * (POINTS[0] - mean).square()).sum()
    spread.backward()
    want = (POINTS[0] - mean.detach()).square().sum(1) - spread.detach()  # minus v: the weights stay normalized
    torch.testing.assert_close(alpha.grad, want)
