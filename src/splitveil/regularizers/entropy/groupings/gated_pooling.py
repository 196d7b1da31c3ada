"""One attention weighting of each class.

    a_m = wᵀ[tanh(V LN z_m) ⊙ sigmoid(U LN z_m)]          α = softmax of a over the members of the class

Fitted by ascent: V, U, w climb the spread S_α that the encoder is charged for. S_α is concave in α, so with
g = max_m Σ_j[(z_mj − μ_j)² − v_j]/(v_j + σ²) the worst weighting has at most S_α + ½g. The uniform weighting rides
along as a second group and the wider of the two is charged: the charge is never below the plain class spread P.
α enters the charge as a constant: at a maximum over α the gradient in z is the one at fixed α (Danskin).

Source: Ilse, Tomczak & Welling, "Attention-based deep multiple instance learning", ICML 2018.
"""

from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.randomness import stream
from splitveil.regularizers.entropy.groupings.base import Grouping, Groups, Rule, Space
from splitveil.regularizers.entropy.members import Members, total


@final
class GatedPooling(Grouping):
    """Gated attention over the members of a class; `alone` leaves the uniform weighting out, as the notes do."""

    default_rule: ClassVar[Rule] = "ascent"
    gate: nn.Parameter
    score: nn.Parameter

    def __init__(
        self, *, hidden: int | None = None, alone: bool = False, start: Literal["uniform", "random"] = "uniform"
    ) -> None:
        super().__init__()
        self.hidden, self.alone, self.start = hidden, alone, start

    def build(self, space: Space) -> None:
        width = self.hidden or min(512, max(64, space.dim // 4))
        rng = stream(space.seed, "gated-pooling")
        draw = torch.randn(2 * width, space.dim, generator=rng) / space.dim**0.5
        self.gate = nn.Parameter(draw.to(space.like))  # V over U, one product
        first = torch.randn(width, generator=rng) / width**0.5 if self.start == "random" else torch.zeros(width)
        self.score = nn.Parameter(first.to(space.like))

    def forward(self, members: Members, draw: Tensor | None) -> Groups:
        alpha = self.attention(members.z, members.row, members.n_rows)
        if self.alone:
            return Groups(alpha.unsqueeze(1), members.row.unsqueeze(1), 1, kind="weighting")
        weight = torch.stack([alpha, torch.ones_like(alpha)], 1)
        index = members.row.unsqueeze(1) * 2 + torch.arange(2, device=alpha.device)
        return Groups(weight, index, 2, kind="weighting")

    def learned(self, members: Members, draw: Tensor | None) -> Groups:
        alpha = self.attention(members.z, members.row, members.n_rows)
        return Groups(alpha.unsqueeze(1), members.row.unsqueeze(1), 1, kind="weighting")

    def attention(
        self, z: Float[Tensor, "member dim"], row: Int[Tensor, "member"], n_rows: int
    ) -> Float[Tensor, "member"]:
        """α of every member; the members of each row sum to 1."""
        value, gate = (F.layer_norm(z, z.shape[1:]) @ self.gate.T).chunk(2, dim=1)
        return segment_softmax((value.tanh() * gate.sigmoid()) @ self.score, row, n_rows)


def segment_softmax(score: Float[Tensor, "member"], row: Int[Tensor, "member"], n_rows: int) -> Float[Tensor, "member"]:
    """Softmax over the members of each row."""
    top = score.detach().new_full((n_rows,), -torch.inf).scatter_reduce_(0, row, score.detach(), "amax")
    rise = (score - top.index_select(0, row)).exp()
    return rise / total(rise, row, n_rows).index_select(0, row)
