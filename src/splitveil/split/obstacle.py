"""Why a model cannot be cut at a place: the reason, in half a line."""

PICK = "Returning(model, field) picks one field of several"  # the way around an output that is not a tensor


class Obstacle(Exception):
    """A reason not to cut here. `cut` turns it into a UsageError that also lists where one can."""
