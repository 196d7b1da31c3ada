"""The baselines every finer grouping has to beat: one group a class, or one group altogether.

plain        var of the class                 charged P = ½ Σ_j log(1 + v_j/σ²)
unlabeled    var of the whole batch           the same with one class; needs no labels
"""

from typing import ClassVar, final

import torch
from torch import Tensor

from splitveil.regularizers.entropy.groupings.base import Grouping, Groups
from splitveil.regularizers.entropy.members import Members


@final
class Plain(Grouping):
    """Class variance."""

    def forward(self, members: Members, draw: Tensor | None) -> Groups:
        return whole(members)


@final
class Unlabeled(Grouping):
    """Variance without classes."""

    uses_labels: ClassVar[bool] = False

    def forward(self, members: Members, draw: Tensor | None) -> Groups:
        return whole(members)


def whole(members: Members) -> Groups:
    """Every class as one group."""
    return Groups(torch.ones_like(members.z[:, :1]), members.row.unsqueeze(1), 1)
