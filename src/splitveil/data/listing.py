"""A list of image files to a pool: what shape they share, which of them are broken, whether they fit in memory."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from splitveil.check import UsageError, at_least, positive
from splitveil.data.archive import bad_file
from splitveil.data.files import PixelFiles
from splitveil.data.part import Part
from splitveil.data.picture import Header, look
from splitveil.data.pool import Pool

N_NAMED = 3  # broken files named in one line; the others are counted


@dataclass(frozen=True)
class Decoding:
    """How image files become pixels, and how much of them is kept in memory."""

    size: int | None = None  # height and width; None: the files' own, which must agree
    channels: int | None = None  # 1 gray, 3 color; None: gray if all files are
    skip_broken: bool = False  # leave out images that cannot be read; otherwise they are an error
    memory: int = 4 * 2**30  # bytes of pixels; sources that need more stay in their files
    workers: int = 4  # processes that decode ahead

    def __post_init__(self) -> None:
        if self.size is not None:
            at_least("size", self.size, 1)
        if self.channels not in (None, 1, 3):
            raise UsageError(f"channels must be 1 (gray) or 3 (color), got {self.channels}")
        positive("memory", self.memory, hint="it is the number of bytes of pixels to keep")
        at_least("workers", self.workers, 0)


@dataclass(frozen=True)
class Listing:
    """Image files with their labels."""

    root: Path
    names: tuple[str, ...]  # relative to root
    labels: NDArray[np.int64]
    classes: tuple[str, ...]

    def take(self, places: list[int]) -> "Listing":
        """The chosen files."""
        names = tuple(self.names[place] for place in places)
        return Listing(self.root, names, self.labels[places], self.classes)


def build_pool(listing: Listing, how: Decoding) -> Pool:
    """The listed images, resident if they fit in memory, else in their files.

    Broken images are found by decoding, which is done at once for images that become resident, and for the others only
    if broken ones are to be skipped; else such a file is named when its turn comes.
    """
    listing, headers, broken = _readable(listing, how)
    shape = _common_shape(listing, headers, how)
    files = PixelFiles(listing.root, listing.names, shape, how.size is not None, how.workers)
    is_resident = Part(files, torch.from_numpy(listing.labels)).n_bytes <= how.memory
    if is_resident or how.skip_broken:
        pixels, unreadable = files.attempt(keep=is_resident)
        good = [place for place in range(len(files)) if place not in unreadable]
        broken, listing, files = broken + list(unreadable.values()), listing.take(good), files.take(good)
    if broken and not how.skip_broken:
        raise UsageError(f"{_told(broken)}; mend them, or skip broken images (--skip-broken)")
    part = Part(pixels if is_resident else files, torch.from_numpy(listing.labels))
    return Pool(listing.root.name, part, listing.classes, (f"skipped: {_told(broken)}",) if broken else ())


def _readable(listing: Listing, how: Decoding) -> tuple[Listing, list[Header], list[str]]:
    """The files whose header can be read, their headers, and a line for each of the others."""

    def attempt(name: str) -> Header | str:
        try:
            return look(listing.root / name)
        except UsageError as error:
            return str(error)

    with ThreadPoolExecutor(max(1, how.workers)) as pool:
        looks = list(pool.map(attempt, listing.names))
    headers = [seen for seen in looks if isinstance(seen, Header)]
    kept = listing.take([place for place, seen in enumerate(looks) if isinstance(seen, Header)])
    return kept, headers, [seen for seen in looks if isinstance(seen, str)]


def _common_shape(listing: Listing, headers: list[Header], how: Decoding) -> tuple[int, int, int]:
    if not headers:
        raise bad_file(listing.root, "none of its images can be read")
    channels = how.channels or (1 if all(header.is_gray for header in headers) else 3)
    if how.size is not None:
        return channels, how.size, how.size
    first = headers[0]
    for name, header in zip(listing.names, headers, strict=True):
        if (header.height, header.width) != (first.height, first.width):
            sizes = f"is {header.width}×{header.height} where {listing.names[0]} is {first.width}×{first.height}"
            raise bad_file(listing.root / name, sizes, hint="give one size for all (--size N, data.decoding.size)")
    return channels, first.height, first.width


def _told(broken: list[str]) -> str:
    """One line for any number of broken files."""
    named = ", ".join(line.split(";")[0] for line in broken[:N_NAMED])
    more = f" and {len(broken) - N_NAMED} more" if len(broken) > N_NAMED else ""
    return f"{len(broken)} broken images: {named}{more}" if len(broken) > 1 else named
