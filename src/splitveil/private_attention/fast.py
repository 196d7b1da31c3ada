"""Small batches on the CPU, in a dozen numpy calls: at this size time is the overhead of calls and one pass over F.

    q₁ = [1, q]        monomials of degree ≤ 2 = q₁ᵢ q₁ⱼ, i ≤ j        [num | last] = table · monomials

The same formulas as query.py, for one head and degree 2 in float32.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from splitveil.private_attention.answer import LEAST_COUNT_SNR, LEAST_SNR, TOLERANCE, Answer
from splitveil.private_attention.facts import ReleaseFacts
from splitveil.private_attention.polynomial import PolynomialKernel

ALIGNED = 16  # float32 numbers in a cache line
MOST_QUERIES = 256  # a batch whose monomials stay in cache; larger ones go through torch


class FastQueries:
    """Answers of one head with a polynomial of degree 2, on the CPU, in float32, without gradients."""

    def __init__(
        self, facts: ReleaseFacts, kernel: PolynomialKernel, folded: Tensor, beta: float, center: Tensor | None
    ) -> None:
        self.shape = torch.Size([kernel.d])
        width, count = kernel.d + 1, folded.shape[1]
        pad = -count % ALIGNED  # zeros at the end of each row: aligned rows are read a seventh faster
        self._table = np.zeros((folded.shape[2], count + pad), dtype=np.float32)
        self._table[:, :count] = folded[0].numpy().T  # one row a column: a dot product each
        self._repeats = np.append(np.arange(width, 0, -1), pad)  # of 1, q_1 … q_d and a final 0
        self._second = np.concatenate([np.arange(i, width) for i in range(width)] + [np.full(pad, width)])
        self._one, self._zero = np.ones(1, dtype=np.float32), np.zeros(1, dtype=np.float32)
        ratio = kernel.query_coefficients(beta)
        self._g0, self._g1, self._g2 = (facts.noise_std**2 * ratio[j] ** 2 for j in range(3))
        self._c, self._c2, self._dv = facts.counted, facts.counted**2, facts.dv
        self._limit, self._limit2 = facts.bounds.query_norm, (facts.bounds.query_norm * (1 + TOLERANCE)) ** 2
        self._center = None if center is None else center.numpy()

    @classmethod
    def make(cls, facts: ReleaseFacts, folded: Tensor, beta: float, center: Tensor | None) -> "FastQueries | None":
        """None where the fast path does not apply."""
        kernel = facts.kernel
        if not isinstance(kernel, PolynomialKernel) or kernel.degrees != (0, 1, 2):
            return None
        if facts.heads != 1 or folded.dtype != torch.float32 or folded.device.type != "cpu":
            return None
        return cls(facts, kernel, folded, beta, center)

    def one(self, q: NDArray[np.float32]) -> Answer:
        """One query of shape (d,)."""
        square = float(q.dot(q))
        if not math.isfinite(square):
            nothing = torch.full((self._dv,), math.nan)
            return Answer(nothing, nothing.clone(), torch.tensor(math.nan), _FLAGGED)
        far = square > self._limit2
        if far:
            q = q * np.float32(self._limit / math.sqrt(square))
            square = self._limit**2
        q1 = np.concatenate((self._one, q, self._zero))
        products = q1.repeat(self._repeats)
        products *= q1.take(self._second, mode="clip")
        sums = self._table.dot(products)
        last = float(sums[-1]) or math.nan
        noise = math.sqrt(self._g0 + square * (self._g1 + square * self._g2))
        unit = noise / abs(last)
        o = sums[:-1] * (self._c / last)
        power = float(o.dot(o))
        snr = math.sqrt(power / (self._dv * self._c2 + power)) / unit
        stderr = np.hypot(o * unit, self._c * unit)
        if self._center is not None:
            o += self._center
        is_good = snr >= LEAST_SNR and last >= LEAST_COUNT_SNR * noise and not far  # NaN is not
        parts = from_numpy(o), from_numpy(stderr), from_numpy(np.array(snr, np.float32))
        return Answer(*parts, _GOOD if is_good else _FLAGGED)

    def many(self, q: NDArray[np.float32]) -> Answer:
        """Queries of shape (batch, d); inside, a column each."""
        columns = np.zeros((len(self._repeats), len(q)), dtype=np.float32)
        columns[0] = 1.0
        inside = columns[1:-1]
        inside[:] = q.T
        square = np.einsum("db,db->b", inside, inside)
        bad = ~np.isfinite(square)
        if bad.any():
            inside[:, bad], square[bad] = 0.0, 0.0
        far = square > self._limit2
        if far.any():
            inside *= np.where(far, self._limit / np.sqrt(np.maximum(square, self._limit2)), 1.0)
            square = np.minimum(square, np.float32(self._limit2))
        products = columns.repeat(self._repeats, axis=0)
        products *= columns.take(self._second, axis=0, mode="clip")
        sums = self._table.dot(products)
        last = np.where(sums[-1] == 0, np.float32(np.nan), sums[-1])
        noise = np.sqrt(self._g0 + square * (self._g1 + square * self._g2))
        unit = noise / np.abs(last)
        o = np.ascontiguousarray((sums[:-1] * (self._c / last)).T)
        power = np.einsum("bc,bc->b", o, o)
        snr = np.sqrt(power / (self._dv * self._c2 + power)) / unit
        stderr = o * o
        stderr += self._c2
        np.sqrt(stderr, out=stderr)
        stderr *= unit[:, None]
        if self._center is not None:
            o += self._center
        if bad.any():
            o[bad], stderr[bad], snr[bad] = np.nan, np.nan, np.nan
        flagged = ~((snr >= LEAST_SNR) & (last >= LEAST_COUNT_SNR * noise) & ~far)
        return Answer(from_numpy(o), from_numpy(stderr), from_numpy(snr), from_numpy(flagged))


_GOOD, _FLAGGED = torch.tensor(False), torch.tensor(True)  # shared and never written to
