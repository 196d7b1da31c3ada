"""Adam whose state is buffers, so that a regularizer's state_dict restores its training exactly.

    m ← β₁m + (1 − β₁)g        s ← β₂s + (1 − β₂)g²        p ← p − lr · m̂ / (√ŝ + ε)

Steps with a non-finite gradient are skipped on the device, without asking it.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from splitveil.check import positive
from splitveil.regularizers.entropy.parallel import World, average


@final
class Adam(nn.Module):
    """One optimizer for the parameters handed to `build`, in one fused call a step."""

    first: Tensor
    second: Tensor
    count: Tensor

    def __init__(self, *, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        super().__init__()
        self.lr, self.betas, self.eps = positive("lr", lr), betas, eps

    def build(self, parameters: Sequence[Tensor]) -> None:
        """Make room for the moments of these parameters."""
        like = parameters[0]
        size = sum(p.numel() for p in parameters)
        self.register_buffer("first", torch.zeros(size, dtype=like.dtype, device=like.device))
        self.register_buffer("second", torch.zeros(size, dtype=like.dtype, device=like.device))
        self.register_buffer("count", torch.zeros(len(parameters), dtype=torch.long, device=like.device))

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor], here: World) -> None:
        """Move the parameters against the gradients; ranks move alike."""
        sizes = [p.numel() for p in parameters]
        flat = average(torch.cat([g.flatten() for g in gradients]), here)
        count = self.count.float()  # kept as integers, so that no cast of the module touches them
        broken = (~flat.sum().isfinite()).to(torch.float32)

        def like_parameters(vector: Tensor) -> list[Tensor]:
            return [v.view_as(p) for v, p in zip(torch.split(vector, sizes), parameters, strict=True)]

        adam(
            [p.detach() for p in parameters],
            like_parameters(flat),
            like_parameters(self.first),
            like_parameters(self.second),
            [],
            list(count.unbind()),
            fused=True,
            found_inf=broken,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=self.lr,
            weight_decay=0.0,
            eps=self.eps,
            maximize=False,
        )
        self.count.copy_(count)
