"""Attention from released moments, for any batch, device and dtype, with gradients; and as a CUDA graph.

    [num | last] = basis(q)ᵀ F,   F = fold(M̂)        o = c·num / last        stderr_j = σ‖ψ(q)‖ √(c² + o_j²) / |last|

F depends on β, dtype and device only and is made once for each. Small batches on the CPU without gradients take the
numpy path of fast.py.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.check import UsageError
from splitveil.private_attention.answer import LEAST_COUNT_SNR, LEAST_SNR, TOLERANCE, Answer
from splitveil.private_attention.facts import ReleaseFacts
from splitveil.private_attention.fast import FastQueries

WARM_UPS = 3  # calls before a capture, so that lazy allocations are done


class QueryPlan:
    """What answering at one β, dtype and device needs."""

    def __init__(self, facts: ReleaseFacts, moments: Tensor, beta: float, like: Tensor) -> None:
        self._facts, self._beta = facts, beta
        self._folded = facts.kernel.fold(moments, beta).to(dtype=like.dtype, device=like.device)
        self._sigma, self._c = facts.noise_std, facts.counted
        self._limit = facts.bounds.query_norm
        center = facts.bounds.value_center
        if center is not None:
            center = torch.as_tensor(center).to(dtype=like.dtype, device=like.device)
            center = center.reshape(-1) if facts.heads == 1 else center
        self._center = center
        self.fast = FastQueries.make(facts, self._folded, beta, self._center)

    def answer(self, q: Float[Tensor, "*batch d"]) -> Answer:
        """For several heads the second-last axis of q is the head."""
        square = q.square().sum(-1, keepdim=True)
        far = square > (self._limit * (1 + TOLERANCE)) ** 2
        q = torch.where(far, q * (self._limit / square.clamp_min(self._limit**2).sqrt()), q)  # no √0 in the gradient
        basis = self._facts.kernel.basis(q, self._beta)
        sums = self._sums(basis)
        noise = self._sigma * self._facts.kernel.query_norm(q, basis, self._beta)[..., None]
        last = sums[..., -1:]
        o = self._c * sums[..., :-1] / last
        stderr = noise / last.abs() * (self._c**2 + o.square()).sqrt()
        snr = (o.square().sum(-1) / stderr.square().sum(-1)).sqrt()
        trusted = (snr >= LEAST_SNR) & (last >= LEAST_COUNT_SNR * noise)[..., 0] & ~far[..., 0]  # NaN is not trusted
        return Answer(o if self._center is None else o + self._center, stderr, snr, ~trusted)

    def _sums(self, basis: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch column"]:
        if self._facts.heads > 1:
            return torch.einsum("...hm,hmc->...hc", basis, self._folded)
        if basis.ndim == 2:
            return (self._folded[0].mT @ basis.mT).mT  # as the basis is laid out: a sixth faster
        product: Tensor = basis @ self._folded[0]
        return product


class CapturedQueries:
    """Answers to batches of one size, recorded as a CUDA graph: the dozens of small kernels are launched as one.

    The answer's tensors are overwritten by the next call; copy what is to be kept.
    """

    def __init__(self, attend: Callable[[Tensor], Answer], example: Tensor) -> None:
        if example.device.type != "cuda":
            raise UsageError(f"a CUDA graph needs a CUDA device, got {example.device}; use attend")
        self._queries = example
        aside = torch.cuda.Stream(example.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(example.device))
        with torch.cuda.stream(aside), torch.no_grad():
            for _ in range(WARM_UPS):
                attend(self._queries)
        torch.cuda.current_stream(example.device).wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph), torch.no_grad():
            self._answer = attend(self._queries)

    def __call__(self, q: Float[Tensor, "*batch d"]) -> Answer:
        self._queries.copy_(q)
        self._graph.replay()
        return self._answer
