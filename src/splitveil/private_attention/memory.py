"""The released memory: noisy moments, and attention answered from them alone.

    M̂ = Σ_i φ(k_i)u_iᵀ + σ·N          [num | last] = ψ(q)ᵀM̂          output = value_center + c · num / last

Every answer is computed from M̂ and public facts, so any number of queries, chosen in any way, costs no further
privacy. `stderr` is the standard error that the noise causes in the kernel's answer; how far the kernel is from the
exponential is stated apart.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import UsageError, positive
from splitveil.dp.events import Event, Gaussian, NonPrivate
from splitveil.private_attention.answer import Answer
from splitveil.private_attention.facts import ReleaseFacts
from splitveil.private_attention.fast import MOST_QUERIES
from splitveil.private_attention.files import ANYONE_READS, read_json, read_tensors, write_json, write_tensors
from splitveil.private_attention.kernel import FeatureMap
from splitveil.private_attention.query import CapturedQueries, QueryPlan
from splitveil.private_attention.report import Report
from splitveil.private_attention.spec import Bounds, PrivacySpec

if TYPE_CHECKING:
    from splitveil.private_attention.builder import Builder

TENSORS, FACTS = "memory.safetensors", "memory.json"
MOST_PLANS = 16  # cached folded moments, one a (β, dtype, device)


class PrivateKV:
    """Keys and values of cross-attention, released once under differential privacy.

    Formal guarantees: the memory as a whole, all its files and every answer ever computed from it, to queries chosen
    adaptively, are (ε, δ)-differentially private in the units of the rows, as `report()` states. It holds no row and
    no exact sum.
    """

    def __init__(self, facts: ReleaseFacts, moments: Float[Tensor, "head feature column"]) -> None:
        self.facts = facts
        self.moments = moments.detach().double()
        self._plans: dict[tuple[float | None, torch.dtype, torch.device], QueryPlan] = {}

    @staticmethod
    def builder(
        spec: PrivacySpec,
        bounds: Bounds,
        features: FeatureMap,
        dv: int,
        *,
        heads: int = 1,
        count: float | None = None,
        seed: int | None = None,
    ) -> "Builder":
        """Start a memory: `.add(K, V)` as often as needed, then `.release()` once."""
        from splitveil.private_attention.builder import Builder

        return Builder(spec, bounds, features, dv, heads=heads, count=count, seed=seed)

    def attend(self, q: Float[Tensor, "*batch d"], beta: float | None = None) -> Answer:
        """softmax(β⟨q, k_i⟩)-weighted mean of the v_i, with its standard error. Gradients flow to q.

        For H > 1 heads q is (…, H, d) and so is the answer. `beta` defaults to the one the features were made for.
        """
        plan = self._plans.get((beta, q.dtype, q.device))
        if plan is not None and plan.fast is not None and q.shape == plan.fast.shape and not q.requires_grad:
            return plan.fast.one(q.numpy())  # one query, plan at hand: nothing else may cost time here
        d, heads = self.facts.kernel.d, self.facts.heads
        if q.shape[-1] != d or (heads > 1 and q.shape[-2:-1] != (heads,)):
            want = f"(…, {d})" if heads == 1 else f"(…, {heads}, {d})"
            raise UsageError(f"queries must have shape {want}, got {tuple(q.shape)}")
        plan = self._plan(beta, q)
        if plan.fast is None or q.numel() > MOST_QUERIES * d or (q.requires_grad and torch.is_grad_enabled()):
            return plan.answer(q)
        if q.ndim == 1:
            return plan.fast.one(q.detach().numpy())
        answer = plan.fast.many(q.detach().reshape(-1, d).numpy())
        return answer if q.ndim == 2 else Answer(*(x.reshape((*q.shape[:-1], *x.shape[1:])) for x in answer))

    def capture(self, batch: int, *, device: torch.device | str, beta: float | None = None) -> "CapturedQueries":
        """`attend` for float32 batches of one size on a CUDA device as one CUDA graph: a single launch a call, no
        gradients."""
        return CapturedQueries(lambda q: self.attend(q, beta), self._example(batch, torch.device(device)))

    def _example(self, batch: int, device: torch.device) -> Tensor:
        shape = (
            (batch, self.facts.kernel.d) if self.facts.heads == 1 else (batch, self.facts.heads, self.facts.kernel.d)
        )
        return torch.zeros(shape, device=device)

    def _plan(self, beta: float | None, q: Tensor) -> QueryPlan:
        key = (beta, q.dtype, q.device)
        if key not in self._plans:
            asked = positive("beta", self.facts.kernel.beta if beta is None else beta)
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            with torch.inference_mode(False):  # kept for later queries, which may ask for gradients
                self._plans[key] = QueryPlan(self.facts, self.moments, float(asked), q)
        return self._plans[key]

    def noisy_count(self) -> tuple[Float[Tensor, "head"], float]:
        """The number of rows as the release itself shows it (post-processing), and its standard error; one a head."""
        weights = self.facts.kernel.counting().to(self.moments.device)
        counts = weights @ self.moments[..., -1].T / self.facts.counted
        return counts, float(weights.norm()) * self.facts.noise_std / self.facts.counted

    def event(self) -> Event:
        """This memory as an event for a `Ledger`; its `shares − 1` siblings are events of their own."""
        if not self.facts.is_private:
            return NonPrivate()
        one = (self.facts.calibration.sensitivity2 / self.facts.spec.shares) ** 0.5
        return Gaussian(sensitivity=one, std=float(self.facts.calibration.scale))

    def report(self) -> Report:
        """What is guaranteed and on which assumptions, in words and numbers."""
        return Report(self.facts)

    def with_moments(self, moments: Tensor, note: str) -> "PrivateKV":
        """The same release with post-processed moments; the note says what was done."""
        return PrivateKV(replace(self.facts, notes=(*self.facts.notes, note)), moments)

    def save(self, folder: Path | str) -> None:
        """Write memory.safetensors and memory.json; no pickle. Under add_remove neither depends on the number of
        rows."""
        tensors = {f"kernel.{name}": tensor for name, tensor in self.facts.kernel.tensors().items()}
        statement = {"statement": self.report().text().splitlines()}
        write_tensors(Path(folder) / TENSORS, {"moments": self.moments.cpu(), **tensors}, mode=ANYONE_READS)
        write_json(Path(folder) / FACTS, self.facts.to_json() | statement, mode=ANYONE_READS)

    @classmethod
    def load(cls, folder: Path | str) -> "PrivateKV":
        """Read what `save` wrote."""
        tensors = read_tensors(Path(folder) / TENSORS)
        kernel = {name.removeprefix("kernel."): t for name, t in tensors.items() if name.startswith("kernel.")}
        try:
            facts = ReleaseFacts.from_json(read_json(Path(folder) / FACTS), kernel)
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"{Path(folder) / FACTS} is not a memory's record ({error}); build the memory again"
            ) from error
        moments = tensors.get("moments")
        wanted = (facts.heads, facts.kernel.n_features, facts.dv + 1)
        if moments is None or tuple(moments.shape) != wanted:
            got = None if moments is None else tuple(moments.shape)
            raise UsageError(
                f"{Path(folder) / TENSORS} must hold moments of shape {wanted}, got {got}; build the memory again"
            )
        return cls(facts, moments)

    def __deepcopy__(self, memo: dict[int, object]) -> "PrivateKV":
        return self  # never changes; copying a network that holds it needs no second one

    def __reduce__(self) -> NoReturn:
        raise UsageError("a PrivateKV is not pickled; use .save(folder) and PrivateKV.load(folder)")
