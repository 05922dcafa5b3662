"""Lists the samples of an HDF5 file as people have them. What is ambiguous is refused with what to
write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vitprof.forms.contract import Found, Refuse
from vitprof.forms.hdf5.choice import Choice, Pair
from vitprof.forms.hdf5.images import images_of
from vitprof.forms.hdf5.labels import classes_of
from vitprof.forms.hdf5.refusal import CHOOSE, PLAIN_FUNCTION, described

if TYPE_CHECKING:
    import h5py

MOST_SAMPLES = 20_000_000
"""Each becomes a file. More are a mistake, such as a shape that was never filled."""


def found_in(path: str, options: Mapping[str, str], refuse: Refuse) -> Found:
    """Returns the samples of an HDF5 file.

    Raises what `refuse` does, and `OSError` where it is none.
    """
    import h5py

    # Without a lock: files on a read-only or network file system cannot be locked.
    file = h5py.File(path, "r", locking=False)
    try:
        return _found(file, options, refuse)
    except (KeyError, RuntimeError, OverflowError) as error:
        # What h5py raises where HDF5 stumbles over what is damaged.
        file.close()
        refuse(f"HDF5 cannot read it ({error.args[0] if error.args else error})")
    except BaseException:
        file.close()
        raise


def _found(file: h5py.File, options: Mapping[str, str], refuse: Refuse) -> Found:
    choice = Choice(file, options, refuse)
    samples: list[tuple[str, str, tuple[str, int]]] = []
    readers: dict[str, Callable[[int], bytes]] = {}
    notes: list[str] = []
    for pair in choice.pairs():
        n = _count(pair, refuse)
        images = images_of(pair.images, options, refuse)
        classes = classes_of(pair.labels, n, refuse)
        readers[pair.split] = images.read
        notes += images.notes
        samples += [(pair.split, name, (pair.split, at)) for at, name in enumerate(classes)]

    def read(key: tuple[str, int]) -> bytes:
        split, at = key
        return readers[split](at)

    all_notes = dict.fromkeys([*choice.notes, *notes])
    return Found(samples, read, list(all_notes), file)


def _count(pair: Pair, refuse: Refuse) -> int:
    """Returns the number of samples. Nothing is read for it: a shape may name more rows than there
    is memory for.
    """
    images = pair.images
    labels = pair.labels
    both = f"{described(images)} and {described(labels)}"
    if not images.shape or not labels.shape:
        refuse(f"{both}: one has no axis, so it cannot have a sample for each row")
    n = int(images.shape[0])
    if labels.size != n and n not in labels.shape:
        if images.ndim > 1 and labels.size == images.shape[-1]:
            refuse(
                f"{both}: the samples are along the last axis; store them along the first, with "
                f"numpy.moveaxis(images, -1, 0), {PLAIN_FUNCTION}"
            )
        refuse(f"{both}: there is no label for each image; {CHOOSE}")
    if n > MOST_SAMPLES:
        refuse(f"{both}: at most {MOST_SAMPLES:,} samples are read")
    return n
