"""Why a model cannot be cut at a place: the reason, in half a line."""


class Obstacle(Exception):
    """A reason not to cut here. `cut` turns it into a UsageError that also lists where one can."""
