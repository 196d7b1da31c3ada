"""A kernel split in two: exp(β⟨q, k⟩) ≈ ⟨ψ(q), φ(k)⟩ with φ bounded, so that one noisy sum of φ(k) answers every q.

    φ on the private side    ‖φ(k)‖ ≤ B,  ⟨φ(k), φ(k′)⟩ ≥ κ_min for ‖k‖, ‖k′‖ ≤ R
    ψ on the query side      ψ(q)ᵀM = basis(q)ᵀ fold(M): what does not depend on q is folded into M once

A `FeatureMap` is chosen by the user without bounds; a builder binds it to them and gets a `Kernel`.
"""

from abc import ABC, abstractmethod
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from splitveil.private_attention.spec import Bounds


@final
class Constants:
    """Public tensors that queries are multiplied with, copied once to each device and precision: a copy from the host
    has no place in a CUDA graph."""

    def __init__(self, *tensors: Tensor) -> None:
        self._copies = {(tensors[0].device, tensors[0].dtype): tensors}
        self._tensors = tensors

    def like(self, q: Tensor) -> tuple[Tensor, ...]:
        """The tensors on the device and in the precision of `q`."""
        key = (q.device, q.dtype)
        if key not in self._copies:
            with torch.inference_mode(False):  # a later query may ask for gradients
                self._copies[key] = tuple(tensor.to(device=q.device, dtype=q.dtype) for tensor in self._tensors)
        return self._copies[key]


class Kernel(ABC):
    """φ and ψ with the bounds in place. Holds public facts only.

    Guarantees expected of every implementation: ‖φ(k)‖ ≤ `norm` and ⟨φ(k), φ(k′)⟩ ≥ `least_inner` whenever ‖k‖, ‖k′‖
    ≤ R; `lift` treats each row on its own, in elementwise or exact arithmetic; `settings` and `tensors` rebuild the
    kernel.
    """

    beta: float  # the temperature the features were made for
    d: int
    n_features: int
    norm: float  # B
    least_inner: float  # κ_min

    @abstractmethod
    def lift(
        self, unit_keys: Float[Tensor, "d row"], out: Float[Tensor, "feature row"] | None = None
    ) -> Float[Tensor, "feature row"]:
        """φ(k) / B · 2²⁰ for keys already divided by R (float64), before truncation to integers. May be written to
        `out`, which spares a large allocation."""

    @abstractmethod
    def basis(self, q: Float[Tensor, "*batch d"], beta: float) -> Float[Tensor, "*batch feature"]:
        """The part of ψ(q) that depends on q. Differentiable."""

    def fold(
        self, moments: Float[Tensor, "*head feature column"], beta: float
    ) -> Float[Tensor, "*head feature column"]:
        """The rest of ψ, applied to the moments: ψ(q)ᵀM = basis(q)ᵀ fold(M). Default: there is none."""
        return moments

    def query_norm(
        self, q: Float[Tensor, "*batch d"], basis: Float[Tensor, "*batch feature"], beta: float
    ) -> Float[Tensor, "*batch"]:
        """‖ψ(q)‖: the noise in ψ(q)ᵀM̂ has standard deviation σ‖ψ(q)‖. Default: `basis` is all of ψ."""
        return basis.square().sum(-1).sqrt()

    @abstractmethod
    def counting(self) -> Float[Tensor, "feature"]:
        """Weights w with ⟨w, φ(k)⟩ = 1, or as near to it as the features come: they count rows."""

    @abstractmethod
    def describe(self) -> str:
        """One sentence on the approximation and its error, for the report."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Plain JSON values."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Public tensors, for a safetensors file."""


class FeatureMap(ABC):
    """A recipe for a kernel: everything but the bounds."""

    d: int

    @abstractmethod
    def bind(self, bounds: Bounds) -> Kernel:
        """The kernel for rows and queries within these bounds."""
