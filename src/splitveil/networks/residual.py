"""y = after(body(x) + shortcut(x)): the building block of every residual network."""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn


@final
class Residual(nn.Module):
    """Adds a module's output to its (possibly projected) input. A network is cut between such blocks, never inside."""

    def __init__(self, body: nn.Module, *, shortcut: nn.Module | None = None, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()
        self.after = after or nn.Identity()

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        return self.after(self.body(x) + self.shortcut(x))  # type: ignore[no-any-return]
