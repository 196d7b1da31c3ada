"""Why a model cannot be cut at a place: the reason, in half a line."""

PICK = "Returning(model, field) picks one field of several"  # the way around an output that is not a tensor


class Obstacle(Exception):
    """A reason not to cut here. `cut` turns it into a UsageError that also lists where one can.

    `also_inside`: the reason holds for every submodule of the named one as well.
    """

    def __init__(self, reason: str, *, also_inside: bool = False) -> None:
        super().__init__(reason)
        self.also_inside = also_inside
