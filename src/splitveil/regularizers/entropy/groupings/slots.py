"""Slot attention, then gated cross-attention from members to slots.

    k, v = maps of LN z, once          slots ~ N(μ, σ²), learned, one draw a class
    T rounds:   r = softmax over slots of β⟨k, q(slot)⟩;  slot ← GRU(Σ_m r v / Σ_m r, slot);  slot += MLP(LN slot)
    refine:     y = e + tanh(α_attn)·Attn(LN e, slots);   y += tanh(α_ffn)·FFN(LN y)          4 heads, gates from 0.1
    r = softmax over slots of ρ·β⟨k(y), q(slot)⟩          sharpened by the power ρ

Keys and queries are each scaled by slot_dim^(−1/4). LayerNorm feeds the weights only; mean and variance are of z.
Members meet the slots of all rows in one product and keep those of their own, so a round is a handful of launches;
that costs member × row × slot numbers of memory a round.

Sources: Locatello et al., "Object-centric learning with slot attention", NeurIPS 2020; Alayrac et al., "Flamingo",
NeurIPS 2022 (tanh gates).
"""

from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.check import UsageError, at_least, positive
from splitveil.randomness import derive
from splitveil.regularizers.entropy.groupings.base import Grouping, Groups, Rule, Space, soft
from splitveil.regularizers.entropy.members import Members

GATE_START = 0.1  # of tanh(α): members begin almost as they are
TINY = 1e-8  # keeps the mean of an empty slot defined


@final
class Slots(Grouping):
    """`n_slots` soft groups a class, found by attention; fitted by likelihood."""

    default_rule: ClassVar[Rule] = "likelihood"
    net: "_Net"

    def __init__(
        self,
        *,
        n_slots: int = 8,
        n_rounds: int = 3,
        slot_dim: int | None = None,
        n_heads: int = 4,
        sharpen: float = 1.0,
    ) -> None:
        super().__init__()
        self.n_slots = int(at_least("n_slots", n_slots, 1))
        self.n_rounds = int(at_least("n_rounds", n_rounds, 1))
        self.n_heads = int(at_least("n_heads", n_heads, 1))
        self.slot_dim, self.sharpen = slot_dim, positive("sharpen", sharpen)

    def build(self, space: Space) -> None:
        width = self.slot_dim or max(self.n_heads, min(space.dim, 128) // self.n_heads * self.n_heads)
        if width % self.n_heads:
            raise UsageError(f"slot_dim must be a multiple of n_heads = {self.n_heads}, got {width}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(space.seed, "slots"))
            self.net = _Net(space.dim, width, self.n_slots, self.n_heads)
        self.net.to(space.like)

    def draw_shape(self, n_rows: int) -> tuple[int, ...] | None:
        return (n_rows, self.n_slots, self.net.width)

    def forward(self, members: Members, draw: Tensor | None) -> Groups:
        assert draw is not None
        r = self.net(members.z, members.row, draw, self.n_rounds, self.sharpen)
        return Groups(r, soft(r, members), self.n_slots)


class _Net(nn.Module):
    def __init__(self, dim: int, width: int, n_slots: int, n_heads: int) -> None:
        super().__init__()
        self.width, self.n_heads = width, n_heads
        self.scale: float = width**-0.25
        self.embed = nn.Linear(dim, width)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.query = nn.Linear(width, width, bias=False)
        self.log_beta = nn.Parameter(torch.zeros(()))
        self.slot_mean = nn.Parameter(torch.randn(n_slots, width) * width**-0.5)
        self.slot_log_std = nn.Parameter(torch.full((n_slots, width), -0.5))
        self.gru = nn.GRUCell(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.slot_norm = nn.LayerNorm(width)
        self.cross = _Cross(width, n_heads)

    def forward(
        self,
        z: Float[Tensor, "member dim"],
        row: Int[Tensor, "member"],
        draw: Float[Tensor, "row slot width"],
        n_rounds: int,
        sharpen: float,
    ) -> Float[Tensor, "member slot"]:
        e = F.layer_norm(self.embed(F.layer_norm(z, z.shape[1:])), (self.width,))
        key, value = self.key_value(e).chunk(2, dim=1)
        value = torch.cat([value, torch.ones_like(value[:, :1])], 1)  # the last column sums to the slot's mass
        n_rows, n_slots = draw.shape[:2]
        pick = row.view(-1, 1, 1).expand(-1, 1, n_slots)
        slots = (self.slot_mean + self.slot_log_std.exp() * draw).flatten(0, 1)
        beta = self.log_beta.exp()
        for _ in range(n_rounds):
            r = (beta * self._own(key, slots, pick, n_rows)).softmax(-1)
            spread = r.new_zeros(len(r), n_rows, n_slots).scatter_(1, pick, r.unsqueeze(1)).flatten(1)
            pooled = spread.T @ value
            slots = self.gru(pooled[:, :-1] / (pooled[:, -1:] + TINY), slots)
            slots = slots + self.mlp(slots)
        y = self.cross(e, slots.view(n_rows, n_slots, -1), row)
        refined = F.linear(y, self.key_value.weight[: self.width])
        final: Tensor = (sharpen * beta * self._own(refined, slots, pick, n_rows)).softmax(-1)
        return final

    def _own(self, key: Tensor, slots: Tensor, pick: Tensor, n_rows: int) -> Tensor:
        """Scaled products of every member with the slots of its own class."""
        query: Tensor = self.query(self.slot_norm(slots))
        every = (key * self.scale**2) @ query.T
        return every.view(len(key), n_rows, -1).gather(1, pick)[:, 0]


class _Cross(nn.Module):
    """y = e + tanh(α_attn)·Attn(LN e, slots), then y + tanh(α_ffn)·FFN(LN y)."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.ffn = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.attn_gate = nn.Parameter(torch.tensor(GATE_START).atanh())
        self.ffn_gate = nn.Parameter(torch.tensor(GATE_START).atanh())

    def forward(self, e: Tensor, slots: Tensor, row: Tensor) -> Tensor:
        n, width = e.shape
        query = self.query(self.norm(e)).view(n, self.n_heads, 1, -1)
        memory = self.key_value(slots).index_select(0, row).view(n, -1, 2, self.n_heads, width // self.n_heads)
        key, value = memory.permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(query, key, value).reshape(n, width)
        y: Tensor = e + self.attn_gate.tanh() * self.out(read)
        y = y + self.ffn_gate.tanh() * self.ffn(y)
        return y
