"""Public rows that look like the private ones, used to denoise a release. Post-processing: it costs no privacy.

    prior mean      P = Σ_public φ(k)uᵀ / n_public
    count           n̂, as the release itself shows it
    James–Stein     D = M̂ − n̂·P shrunk row by row:  (1 − (columns − 2) σ² / ‖D_r‖²)₊ · D_r,  and n̂·P added back

    regression      w(q) = (G + λ)⁻¹ E_public[φ(k) e^{β⟨q,k⟩}] instead of ψ(q),   G = E_public[φφᵀ],  λ = (σ / n̂)²

James–Stein helps where noise dominates (few rows, small ε): a row of moments that is mostly noise is replaced by the
public one. Public regression helps where the polynomial's bias dominates (large β): w(q)ᵀφ(k) is the best
approximation of e^{β⟨q,k⟩} by the released features on public keys, for each query, with the noise as its ridge. Both
only lose accuracy, never privacy, when the public rows are unlike the private ones; James–Stein then shrinks less,
regression has no such safeguard.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import UsageError
from splitveil.private_attention.encoder import Encoder
from splitveil.private_attention.facts import ReleaseFacts
from splitveil.private_attention.memory import PrivateKV

LEAST_COUNT = 1.0  # a noisy count below it is no count


@dataclass(frozen=True, eq=False)
class PublicPrior:
    """Public keys and values, (n, d) and (n, d_v) or with a head axis, in the coordinates of the private rows."""

    keys: Float[Tensor, "row *key"]
    values: Float[Tensor, "row *value"]

    def __post_init__(self) -> None:
        if len(self.keys) < 1:
            raise UsageError("a public prior needs at least one row")

    def mean(self, facts: ReleaseFacts) -> Float[Tensor, "head feature column"]:
        """What one public row adds to the moments, on average."""
        encoder = Encoder(facts.bounds, facts.kernel, facts.dv, facts.heads, facts.count)
        keys, values = encoder.check(self.keys, self.values)
        return encoder.rows(keys, values).double() * (facts.step / len(keys))

    def denoise(self, memory: PrivateKV) -> PrivateKV:
        """The memory with its moments shrunk toward the public ones, row by row.

        Standard errors of its answers are still those of the release: too large where shrinking helped, and blind to
        a bias toward the public rows.
        """
        expected = self.mean(memory.facts).to(memory.moments.device)
        counts, _ = memory.noisy_count()
        center = counts.clamp_min(LEAST_COUNT)[:, None, None] * expected
        difference = memory.moments - center
        columns = difference.shape[-1]
        noise = max(columns - 2, 0) * memory.facts.noise_std**2
        keep = (1 - noise / difference.square().sum(-1, keepdim=True).clamp_min(1e-300)).clamp_min(0.0)
        return memory.with_moments(center + keep * difference, "moments shrunk toward public rows (James–Stein)")


class PublicRegression:
    """Answers a single-head memory's queries with weights regressed on public keys instead of the kernel's own ψ(q)."""

    def __init__(self, memory: PrivateKV, keys: Float[Tensor, "row d"]) -> None:
        facts = memory.facts
        if facts.heads != 1:
            raise UsageError(f"public regression takes a memory of one head, got {facts.heads}")
        self._memory = memory
        encoder = Encoder(facts.bounds, facts.kernel, 1, 1, 1.0)
        self._keys, self._phi = encoder.features(keys)
        count = float(memory.noisy_count()[0].clamp_min(LEAST_COUNT))
        ridge = (facts.noise_std / count) ** 2
        gram = self._phi @ self._phi.T / len(keys)
        self._factor = torch.linalg.cholesky(gram + ridge * torch.eye(len(gram), dtype=torch.float64))

    def attend(self, q: Float[Tensor, "query d"], beta: float | None = None) -> Float[Tensor, "query dv"]:
        """softmax(β⟨q, k_i⟩)-weighted mean of the v_i."""
        facts = self._memory.facts
        beta = facts.kernel.beta if beta is None else beta
        target = (beta * self._keys @ q.double().T).exp() / self._keys.shape[0]
        weights = torch.cholesky_solve(self._phi @ target, self._factor)
        sums = weights.T @ self._memory.moments[0]
        output = facts.counted * sums[:, :-1] / sums[:, -1:]
        center = facts.bounds.value_center
        return (output if center is None else output + torch.as_tensor(center)).to(q.dtype)
