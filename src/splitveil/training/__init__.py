"""Split + mechanism + regularizers at work."""

from splitveil.training.accuracy import accuracy
from splitveil.training.device import find_device, n_ranks, this_rank
from splitveil.training.loop import Trained, train
from splitveil.training.recipe import Recipe
from splitveil.training.rehearsal import rehearse
from splitveil.training.schedule import Weight, learning_rate
from splitveil.training.step import Term
from splitveil.training.watch import Report, Silent, Watcher

__all__ = [
    "Recipe",
    "Report",
    "Silent",
    "Term",
    "Trained",
    "Watcher",
    "Weight",
    "accuracy",
    "find_device",
    "learning_rate",
    "n_ranks",
    "rehearse",
    "this_rank",
    "train",
]
