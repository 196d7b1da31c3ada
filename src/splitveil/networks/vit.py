"""A small vision transformer: features are tokens [batch, token, 192].

    h_0 = patches(x) + position        h_i = block_i(h_{i−1})        logits = linear(mean_token(norm(h_6)))
    block(h):  h ← h + attention(norm(h));  h ← h + mlp(norm(h))

There is no class token, so what is sent is one row a patch: 64 tokens for 32 px (patches of 4 px) and for 64 px
(patches of 8), and with the 8-channel bottleneck 64 × 8 numbers, as many as VGG11's 8×8×8.

Source: Dosovitskiy et al., "An Image Is Worth 16x16 Words" (ICLR 2021); pre-norm blocks, width and heads of ViT-Tiny.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from splitveil.check import UsageError
from splitveil.networks.naming import named
from splitveil.networks.reference import ImageShape, Reference
from splitveil.networks.residual import Residual
from splitveil.types import Images

WIDTH, HEADS, DEPTH, EXPANSION = 192, 3, 6, 4
INITIAL_STD = 0.02  # of positions and linear weights, as in the source
LARGE = 64  # px from which patches are 8 px wide and not 4

Tokens = Float[Tensor, "batch token dim"]


@final
class Patches(nn.Module):
    """Cuts the image into squares, one token each, and tells every token its place."""

    def __init__(self, image_shape: ImageShape, *, width: int) -> None:
        super().__init__()
        channels, height, breadth = image_shape
        patch = 8 if min(height, breadth) >= LARGE else 4
        if height % patch or breadth % patch:
            raise UsageError(f"this network needs image sides divisible by {patch}, got {height}×{breadth}")
        self.project = nn.Conv2d(channels, width, kernel_size=patch, stride=patch)
        self.position = nn.Parameter(torch.empty(1, (height // patch) * (breadth // patch), width))
        nn.init.trunc_normal_(self.position, std=INITIAL_STD)

    def forward(self, x: Images) -> Tokens:
        return self.project(x).flatten(2).transpose(1, 2) + self.position  # type: ignore[no-any-return]


@final
class Attention(nn.Module):
    """Every token looks at every other."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)

    def forward(self, h: Tokens) -> Tokens:
        q, k, v = self.to_qkv(h).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(seen.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


@final
class TokenMean(nn.Module):
    """The mean of all tokens."""

    def forward(self, h: Tokens) -> Float[Tensor, "batch dim"]:
        return h.mean(1)


def _block() -> nn.Sequential:
    mlp = named(
        norm=nn.LayerNorm(WIDTH),
        widen=nn.Linear(WIDTH, EXPANSION * WIDTH),
        gelu=nn.GELU(),
        narrow=nn.Linear(EXPANSION * WIDTH, WIDTH),
    )
    attention = named(norm=nn.LayerNorm(WIDTH), attention=Attention(width=WIDTH, heads=HEADS))
    return named(attention=Residual(attention), mlp=Residual(mlp))


def _vit(*, n_classes: int, image_shape: ImageShape) -> nn.Sequential:
    blocks = {f"block{i}": _block() for i in range(1, DEPTH + 1)}
    classifier = named(norm=nn.LayerNorm(WIDTH), mean=TokenMean(), linear=nn.Linear(WIDTH, n_classes))
    model = named(patches=Patches(image_shape, width=WIDTH), **blocks, classifier=classifier)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=INITIAL_STD)
            nn.init.zeros_(module.bias)
    return model


vit = Reference(_vit, cut="block2", cuts=("patches", *(f"block{i}" for i in range(1, DEPTH + 1))))
