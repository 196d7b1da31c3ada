"""Attention from released moments: a batch of queries with gradients, and one query at a time as fast as it goes.

    [num | last] = basis(q)ᵀ F,   F = fold(M̂)        o = c·num / last        stderr_j = σ‖ψ(q)‖ √(c² + o_j²) / |last|

F depends on β, dtype and device only and is made once for each. A single query on the CPU without gradients takes a
numpy path of a dozen calls: at this size the time is the overhead of calls and one pass over F.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from splitveil.check import UsageError
from splitveil.private_attention.facts import ReleaseFacts
from splitveil.private_attention.polynomial import PolynomialKernel

LEAST_SNR = 2.0  # ‖o‖ below twice its standard error says little
LEAST_COUNT_SNR = 5.0  # last / its noise: below it the ratio is no longer close to normal
WARM_UPS = 3  # calls before a capture, so that lazy allocations are done
TOLERANCE = 1e-5  # a query this little beyond its bound is float32 rounding


class Answer(NamedTuple):
    """Attention answered from a private memory.

    `stderr` is the noise's standard error of each coordinate; `snr` = ‖output − value_center‖ / ‖stderr‖; `flagged`
    says not to trust the answer: low signal, a normalizer that may be noise, or a query beyond its bound (answered as
    if shortened to it).
    """

    output: Float[Tensor, "*batch dv"]
    stderr: Float[Tensor, "*batch dv"]
    snr: Float[Tensor, "*batch"]
    flagged: Bool[Tensor, "*batch"]


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
        self.single = SingleQuery.make(facts, self._folded, beta, self._center)

    def answer(self, q: Float[Tensor, "*batch d"]) -> Answer:
        """For several heads the second-last axis of q is the head."""
        square = q.square().sum(-1, keepdim=True)
        far = square > (self._limit * (1 + TOLERANCE)) ** 2
        q = torch.where(far, q * (self._limit / square.clamp_min(self._limit**2).sqrt()), q)  # no √0 in the gradient
        basis = self._facts.kernel.basis(q, self._beta)
        sums = (
            basis @ self._folded[0] if self._facts.heads == 1 else torch.einsum("...hm,hmc->...hc", basis, self._folded)
        )
        noise = self._sigma * self._facts.kernel.query_norm(q, basis, self._beta)[..., None]
        last = sums[..., -1:]
        o = self._c * sums[..., :-1] / last
        stderr = noise / last.abs() * (self._c**2 + o.square()).sqrt()
        snr = (o.square().sum(-1) / stderr.square().sum(-1)).sqrt()
        trusted = (snr >= LEAST_SNR) & (last >= LEAST_COUNT_SNR * noise)[..., 0] & ~far[..., 0]  # NaN is not trusted
        return Answer(o if self._center is None else o + self._center, stderr, snr, ~trusted)


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


class SingleQuery:
    """One query, one head, a polynomial of degree 2, CPU, float32: the same formulas in numpy.

    With q₁ = [1, q] the monomials of degree ≤ 2 are the products q₁ᵢ q₁ⱼ, i ≤ j, in the order of `Monomials`.
    """

    def __init__(
        self, facts: ReleaseFacts, kernel: PolynomialKernel, folded: Tensor, beta: float, center: Tensor | None
    ) -> None:
        self._table = np.ascontiguousarray(folded[0].numpy().T)  # one row a column: a dot product each, read once
        width = kernel.d + 1
        self._repeats = np.arange(width, 0, -1)
        self._second = np.concatenate([np.arange(i, width) for i in range(width)])
        self._one = np.ones(1, dtype=np.float32)
        ratio = kernel.query_coefficients(beta)
        self._g0, self._g1, self._g2 = (facts.noise_std**2 * ratio[j] ** 2 for j in range(3))
        self._c, self._c2, self._dv = facts.counted, facts.counted**2, facts.dv
        self._limit, self._limit2 = facts.bounds.query_norm, (facts.bounds.query_norm * (1 + TOLERANCE)) ** 2
        self._center = None if center is None else center.numpy()

    @classmethod
    def make(cls, facts: ReleaseFacts, folded: Tensor, beta: float, center: Tensor | None) -> "SingleQuery | None":
        """None where the fast path does not apply."""
        kernel = facts.kernel
        if not isinstance(kernel, PolynomialKernel) or kernel.degrees != (0, 1, 2):
            return None
        if facts.heads != 1 or folded.dtype != torch.float32 or folded.device.type != "cpu":
            return None
        return cls(facts, kernel, folded, beta, center)

    def answer(self, q: NDArray[np.float32]) -> Answer:
        square = float(q.dot(q))
        far = square > self._limit2
        if far:
            q = q * np.float32(self._limit / math.sqrt(square))
            square = self._limit**2
        q1 = np.concatenate((self._one, q))
        products = q1.repeat(self._repeats)
        products *= q1.take(self._second, mode="clip")
        sums = self._table @ products
        last = float(sums[-1])
        o = sums[:-1] * (self._c / last if last else math.inf)
        noise = math.sqrt(self._g0 + square * (self._g1 + square * self._g2))
        unit = noise / abs(last) if last else math.inf
        power = float(o.dot(o))
        stderr = o * o
        stderr += self._c2
        np.sqrt(stderr, out=stderr)
        stderr *= unit
        snr = math.sqrt(power / (self._dv * self._c2 + power)) / unit
        flagged = far or not (snr >= LEAST_SNR and last >= LEAST_COUNT_SNR * noise)
        if self._center is not None:
            o += self._center
        parts = torch.from_numpy(o), torch.from_numpy(stderr), torch.from_numpy(np.array(snr, dtype=np.float32))
        return Answer(*parts, _FLAG[flagged])


_FLAG = {False: torch.tensor(False), True: torch.tensor(True)}  # shared and never written to
