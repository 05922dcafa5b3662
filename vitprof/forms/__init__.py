"""The forms that samples are stored in: a line here and a module each.

The line says what a form is. It is read in every process, so this file imports the standard library
alone. The module reads and writes the form, as `vitprof.forms.contract` says; it is imported where
that is done: by a job, by a data set of the user's, in a script's own Python. Exported code has its
text.
"""

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Form:
    """What is known of a form before its module is imported."""

    title: str
    package: str
    """The module that a Python needs to read and write it."""
    wheel: str = ""
    """The package on PyPI that has it, where another one there has the module's name."""
    keeps_files: bool = True
    """Whether images stay as their files are, encoded, where a Dataset reads such files; otherwise
    they are pixels."""
    order: str = ""
    """The library that reads this form in an order of its own; empty where it reads by index as
    here."""
    module: str = ""
    """Its module here; empty: it has the form's name."""
    job: bool = False
    """Whether jobs have a storage of its name, of encoded images. Others may be in the storages that
    `vitprof.config.parts` names."""
    needs_torch: bool = False
    """Whether its module brings PyTorch, which the dashboard's process never imports."""
    names_files: bool = False
    """Whether its library opens files that the samples or an index name, past our gate: a page reads
    none of it."""


FORMS: dict[str, Form] = {
    "memmap": Form("pixels and arrays in one memory-mapped file", "numpy", keeps_files=False),
    "hdf5": Form("the same in HDF5", "h5py", keeps_files=False),
    "pt": Form("a .pt file for each sample", "torch", keeps_files=False, needs_torch=True),
    "jpeg": Form("JPEG files resized once, in one file", "PIL", keeps_files=False, module="memmap"),
    "lmdb": Form("LMDB", "lmdb"),
    "webdataset": Form("WebDataset's shards", "tarfile", order="WebDataset"),
    "parquet": Form("Parquet", "pyarrow", job=True),
    "arrow": Form("Arrow of Hugging Face's datasets", "datasets", names_files=True),
    "lance": Form("Lance", "lance", wheel="pylance", names_files=True),
    "litdata": Form(
        "LitData's chunks", "litdata", order="LitData", needs_torch=True, names_files=True
    ),
    "mosaicml": Form(
        "MosaicML Streaming's shards",
        "streaming",
        wheel="mosaicml-streaming",
        order="Streaming",
        needs_torch=True,
        names_files=True,
    ),
}


def module_name(form: str) -> str:
    """Returns the dotted name of a form's module."""
    return f"{__name__}.{FORMS[form].module or form}"


def module_of(form: str) -> ModuleType:
    """Returns a form's module. Raises `ImportError` where a package that it needs is missing."""
    return importlib.import_module(module_name(form))


def is_installed(form: str) -> bool:
    """Returns whether this Python has the package that a form needs."""
    return importlib.util.find_spec(FORMS[form].package) is not None
