"""The embedded default: a lossless subset of Fashion-MNIST (Zalando SE, MIT; see embedded/fashion.NOTICE).

    of official train:  train      the first 1,200 of each class       selection  the last 200 of each class
    of official test:   auxiliary  the first 500 of each class         victims    the next 250 of each class

28×28 gray, 10 classes, no exact copies. Made by tools/make_fashion.py; each image's `index` is its official place.
"""

from pathlib import Path

import numpy as np

from splitveil.check import UsageError
from splitveil.data.archive import bad_file
from splitveil.data.imageset import ImageSet, Role
from splitveil.data.pack import load_pack
from splitveil.data.pool import Pool, assemble

EMBEDDED = Path(__file__).parent / "embedded" / "fashion.npz"


def fashion() -> ImageSet:
    """Fashion-MNIST as it comes with the package: 12,000 train, 5,000 auxiliary, 2,000 selection, 2,500 victims.

    >>> fashion().describe()
    'fashion: 1×28×28, 10 classes; train 12,000, auxiliary 5,000, selection 2,000, victims 2,500'
    """
    try:
        pack = load_pack(EMBEDDED)
    except UsageError as error:
        raise bad_file(EMBEDDED, "the embedded images cannot be read", hint="install splitveil again") from error
    pool = Pool("fashion", pack.part, pack.classes)
    number = pack.fields["role"]
    return assemble(pool, {role: pool.fair(np.flatnonzero(number == k)) for k, role in enumerate(Role)})
