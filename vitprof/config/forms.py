"""The forms in which the samples of a user's own Dataset can be stored."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from vitprof.errors import ConfigError


class Form(NamedTuple):
    """A form."""

    title: str
    package: str
    """What the script's Python needs to write and read it."""
    keeps_files: bool
    """Whether images stay as their files are, encoded, where the Dataset reads such files; otherwise they
    are pixels."""
    order: str = ""
    """The library that reads this form in an order of its own; empty where it reads by index as here."""
    module: str = ""
    """The module of `vitprof.watch.forms`; empty: it has the form's name."""


FORMS = {
    "memmap": Form("pixels and arrays in one memory-mapped file", "numpy", False),
    "hdf5": Form("the same in HDF5", "h5py", False),
    "pt": Form("a .pt file for each sample", "torch", False),
    "jpeg": Form("JPEG files resized once, in one file", "PIL", False, module="memmap"),
    "lmdb": Form("LMDB", "lmdb", True),
    "webdataset": Form("WebDataset's shards", "webdataset", True, "WebDataset"),
    "parquet": Form("Parquet", "pyarrow", True),
    "arrow": Form("Arrow of Hugging Face's datasets", "datasets", True),
    "lance": Form("Lance", "lance", True),
    "litdata": Form("LitData's chunks", "litdata", True, "LitData"),
    "mosaicml": Form("MosaicML Streaming's shards", "streaming", True, "Streaming"),
}
SAMPLES = 500
"""Samples that a plan stores in each form, unless it is given."""
AS_IT_IS = "as-is"
"""The samples of a plan as the script's own Dataset reads them."""


def in_request(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns forms as `vitprof.watch.conversion` wants them."""
    request = {}
    for name in names:
        form = FORMS[name]
        request[name] = {
            "module": form.module or name,
            "package": form.package,
            "keeps_files": form.keeps_files,
        }
    return request


def check_form(option: str, name: str) -> None:
    """Raises `ConfigError` where there is no such form."""
    if name not in FORMS:
        raise ConfigError(option, name, f"choose one of {', '.join(FORMS)}")
