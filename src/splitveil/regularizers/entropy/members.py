"""The members of a training step: one vector each, and the class it belongs to.

row_m      the row of per-class state a member adds to;  R = min(C, B) rows, so memory does not grow with C
total_g    Σ over entries i with index_i = g of value_i        (flat segments: no loop, no padding, no device sync)
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Members:
    """All vectors of a step, by class."""

    z: Float[Tensor, "member dim"]
    row: Int[Tensor, "member"]
    label: Int[Tensor, "row"]  # class of each row; rows of absent classes have count 0
    count: Float[Tensor, "row"]
    noise_var: float  # σ² of one coordinate of these vectors

    @property
    def n_rows(self) -> int:
        """Rows of per-class state."""
        return self.count.shape[0]

    @property
    def share(self) -> Float[Tensor, "row"]:
        """M_c / B."""
        return self.count / self.z.shape[0]

    @property
    def is_charged(self) -> Float[Tensor, "row"]:
        """1 for classes with two members or more, 0 for the others: one member has no spread."""
        return (self.count > 1).to(self.count.dtype)


def total(values: Float[Tensor, "entry *rest"], index: Int[Tensor, "entry"], n: int) -> Float[Tensor, "n *rest"]:
    """Sum the entries of each index."""
    return values.new_zeros(n, *values.shape[1:]).index_add_(0, index, values)


def assemble(z: Float[Tensor, "member dim"], y: Int[Tensor, "member"], *, n_classes: int, noise_var: float) -> Members:
    """Give every member its row. With more classes than members, only the classes that are there get one."""
    if n_classes <= len(y):
        row, label = y, torch.arange(n_classes, device=y.device)
    else:
        there = torch.zeros(n_classes, dtype=torch.long, device=y.device).index_fill_(0, y, 1)
        row = (there.cumsum(0) - 1).index_select(0, y)
        label = torch.zeros_like(y).scatter_(0, row, y)
    return Members(z, row, label, total(torch.ones_like(z[:, 0]), row, len(label)), noise_var)
