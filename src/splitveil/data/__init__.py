"""Images with their facts: sources, roles, augmentation, batches."""

from splitveil.data.augment import Augment
from splitveil.data.batch import Batch, batches, n_batches, sweep
from splitveil.data.fashion_mnist import fashion
from splitveil.data.imageset import ImageSet, Role
from splitveil.data.listing import Decoding
from splitveil.data.part import UNLABELED, Part
from splitveil.data.reader import read

__all__ = [
    "UNLABELED",
    "Augment",
    "Batch",
    "Decoding",
    "ImageSet",
    "Part",
    "Role",
    "batches",
    "fashion",
    "n_batches",
    "read",
    "sweep",
]
