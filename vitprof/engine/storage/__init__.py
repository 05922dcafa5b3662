"""Storages: how samples are kept and read.

`REGISTRY` has the file of each, `contract` what it must do.

A storage gives one of three things (its form): finished samples one by one through a torch Dataset,
uint8 pixels in whole batches, or encoded images. What makes batches of them is in `loaders`; where
their files are and how fast those can be read is a `Location` (`vitprof.engine.locations`).
"""

import importlib
from typing import Any, NamedTuple

from vitprof.config.parts import STORAGES
from vitprof.config.strategies import PLUGGED
from vitprof.datasets.catalog import DatasetInfo
from vitprof.engine.storage.contract import Format, Location


class StorageCode(NamedTuple):
    """Where a storage's code is.

    Imported when needed: h5py, lmdb and torchvision are slow to import.
    """

    module: str
    """Module of this package."""
    opener: str
    """What opens the storage there: called with the data set's facts, the location, whether it is the
    training split."""
    format: str = ""
    """The `Format` there that writes it; "" for a storage that is read from another one."""
    form: str = ""
    """The form of `vitprof.forms` for which the opener and the format are called; "": they are of
    this storage alone."""

    def get(self, name: str) -> Any:
        """Returns what is called `name` in the module; of another package, "package.module:name"."""
        module, _, own = name.rpartition(":")
        if not module:
            module = f"vitprof.engine.storage.{self.module}"
        return getattr(importlib.import_module(module), own)


IMAGES = {"encoded": "EncodedImages", "pixels": "PixelImages"}
"""What a storage delivers -> what opens it where it is in a form of `vitprof.forms`."""
REGISTRY: dict[str, StorageCode] = {
    "idx": StorageCode("torchvision_datasets", "IdxStorage"),
    "imagefolder": StorageCode("torchvision_datasets", "ImageFolderStorage"),
    "files": StorageCode("files", "FilesStorage", "IMAGE_FORMAT"),
    "raw-files": StorageCode("files", "RawFilesStorage", "RAW_FORMAT"),
    "pt": StorageCode("files", "PtStorage", "PT_FORMAT"),
    "pt-single": StorageCode("files", "open_mapped", "SINGLE_FORMAT"),
    "pt-whole": StorageCode("files", "open_whole"),
    "hdf5": StorageCode("hdf5", "ContiguousStorage", "CONTIGUOUS_FORMAT"),
    "hdf5-chunked": StorageCode("hdf5", "ChunkedStorage", "CHUNKED_FORMAT"),
    "memmap": StorageCode("arrays", "MemmapStorage", "FORMAT"),
    "memory": StorageCode("arrays", "open_uint8"),
    "memory-float": StorageCode("arrays", "open_float"),
}


REGISTRY |= {
    name: StorageCode("in_forms", IMAGES[part.form], "format_in", part.in_form)
    for name, part in STORAGES.items()
    if part.in_form
}
REGISTRY |= {
    name: StorageCode("", *plugged)._replace(form=STORAGES[name].in_form)
    for name, plugged in PLUGGED["storages"].items()
}


def open_storage(
    name: str, info: DatasetInfo, location: Location, *, train: bool, **options: Any
) -> Any:
    """Opens one split of the storage called `name`: a storage of the form that
    `parts.STORAGES[name].form` says.

    `options` are the storage's own, such as `augment` for those that have transforms. Raises
    `DataError` if a file is missing or damaged.
    """
    entry = REGISTRY[name]
    if entry.form:
        options["form"] = entry.form
    return entry.get(entry.opener)(info, location, train, **options)


def format_of(storage: str) -> Format:
    """Returns the format of the storage called `storage`."""
    entry = REGISTRY[storage]
    found = entry.get(entry.format)
    if entry.form:
        found = found(entry.form, STORAGES[storage].form)
    return found  # type: ignore[no-any-return]
