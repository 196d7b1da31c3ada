"""Everything public about a release: what was promised, by which numbers, and under which assumptions.

Under "add_remove" the number of rows is itself private, so it is not here and in no file; nor is a count of clipped
rows.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from splitveil.check import UsageError
from splitveil.private_attention.codebook import CodebookKernel
from splitveil.private_attention.kernel import Kernel
from splitveil.private_attention.lattice import FEATURE_BITS, VALUE_BITS, count_integer
from splitveil.private_attention.nystrom import NystromKernel
from splitveil.private_attention.polynomial import PolynomialFeatures, PolynomialKernel
from splitveil.private_attention.sensitivity import Calibration
from splitveil.private_attention.spec import Bounds, PrivacySpec

FORMAT = 1  # of the JSON file


@dataclass(frozen=True, eq=False)
class ReleaseFacts:
    """The public record of one release."""

    spec: PrivacySpec
    bounds: Bounds
    kernel: Kernel
    dv: int
    heads: int
    count: float  # c as asked for; answers use the truncated one below
    calibration: Calibration
    sampler: str
    is_private: bool
    noise_factor: float = 1.0  # a stream's tick: noise of the decoded total over the noise of one release
    notes: tuple[str, ...] = ()  # what was done to the moments after the release

    @property
    def step(self) -> float:
        """One lattice step in units of φ·u: the released moments are integer multiples of it."""
        width = math.hypot(self.bounds.value_norm, self.count)
        return self.kernel.norm * width / (1 << (FEATURE_BITS + VALUE_BITS))

    @property
    def noise_std(self) -> float:
        """σ of each cell of the moments, in units of φ·u."""
        return self.calibration.scale * self.step * self.noise_factor

    @property
    def counted(self) -> float:
        """c after truncation: what one row adds to the counting column."""
        width = math.hypot(self.bounds.value_norm, self.count)
        return count_integer(self.bounds.value_norm, self.count) * width / (1 << VALUE_BITS)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; with the kernel's tensors they rebuild the record."""
        return {
            "format": FORMAT,
            "spec": asdict(self.spec),
            "bounds": self.bounds.settings(),
            "kernel": self.kernel.settings(),
            "dv": self.dv,
            "heads": self.heads,
            "count": self.count,
            "calibration": asdict(self.calibration) | {"sensitivity2": str(self.calibration.sensitivity2)},
            "sampler": self.sampler,
            "private": self.is_private,
            "noise_factor": self.noise_factor,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any], tensors: dict[str, Tensor]) -> "ReleaseFacts":
        if plain.get("format") != FORMAT:
            raise UsageError(
                f"this memory has format {plain.get('format')!r}, this version reads {FORMAT}; build it again"
            )
        calibration = dict(plain["calibration"])
        calibration["sensitivity2"] = int(calibration["sensitivity2"])
        return cls(
            spec=PrivacySpec(**plain["spec"]),
            bounds=Bounds(**plain["bounds"]),
            kernel=_kernel(plain["kernel"], tensors),
            dv=plain["dv"],
            heads=plain["heads"],
            count=plain["count"],
            calibration=Calibration(**calibration),
            sampler=plain["sampler"],
            is_private=plain["private"],
            noise_factor=plain["noise_factor"],
            notes=tuple(plain["notes"]),
        )


def _polynomial(s: dict[str, Any], tensors: dict[str, Tensor]) -> Kernel:
    features = PolynomialFeatures(s["d"], s["degree"], s["beta"], s["method"], tensors.get("products"))
    return PolynomialKernel(features, key_norm=s["key_norm"], query_norm=s["query_norm"])


def _nystrom(s: dict[str, Any], tensors: dict[str, Tensor]) -> Kernel:
    return NystromKernel(tensors["landmarks"], s["beta"], key_norm=s["key_norm"], query_norm=s["query_norm"])


def _codebook(s: dict[str, Any], tensors: dict[str, Tensor]) -> Kernel:
    return CodebookKernel(tensors["centroids"], s["beta"], key_norm=s["key_norm"])


_KINDS: dict[str, Callable[[dict[str, Any], dict[str, Tensor]], Kernel]] = {
    "polynomial": _polynomial,
    "nystrom": _nystrom,
    "codebook": _codebook,
}


def _kernel(settings: dict[str, Any], tensors: dict[str, Tensor]) -> Kernel:
    if settings.get("kind") not in _KINDS:
        raise UsageError(f"kernel kind {settings.get('kind')!r} is not known; choose one of: {', '.join(_KINDS)}")
    return _KINDS[settings["kind"]](settings, tensors)
