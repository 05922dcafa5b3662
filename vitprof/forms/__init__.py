"""The forms that samples are stored in: a line here and a module each.

The line says what a form is. It is read in every process, so this file imports the standard library
alone. The module reads and writes the form, as `vitprof.forms.contract` says; it is imported where
that is done: by a job, by a data set of the user's, in a script's own Python. Exported code has its
text.
"""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
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
    mark: str = ""
    """What each part of stored samples has in this form and in no other; empty where another form has
    the same module, and is read by it."""


FORMS: dict[str, Form] = {
    "memmap": Form(
        "pixels and arrays in one memory-mapped file", "numpy", keeps_files=False, mark="ends.npy"
    ),
    "hdf5": Form("the same in HDF5", "h5py", keeps_files=False, mark="samples.h5"),
    "pt": Form(
        "a .pt file for each sample", "torch", keeps_files=False, needs_torch=True, mark="0.pt"
    ),
    "jpeg": Form("JPEG files resized once, in one file", "PIL", keeps_files=False, module="memmap"),
    "lmdb": Form("LMDB", "lmdb", mark="data.mdb"),
    "webdataset": Form("WebDataset's shards", "tarfile", order="WebDataset", mark="000000.tar"),
    "parquet": Form("Parquet", "pyarrow", job=True, mark="samples.parquet"),
    "arrow": Form(
        "Arrow of Hugging Face's datasets", "datasets", names_files=True, mark="samples.arrow"
    ),
    "lance": Form("Lance", "lance", wheel="pylance", names_files=True, mark="samples.lance"),
    "litdata": Form(
        "LitData's chunks",
        "litdata",
        order="LitData",
        needs_torch=True,
        names_files=True,
        mark="index.json",
    ),
    "mosaicml": Form(
        "MosaicML Streaming's shards",
        "streaming",
        wheel="mosaicml-streaming",
        order="Streaming",
        needs_torch=True,
        names_files=True,
        mark="samples",
    ),
}


def module_name(form: str) -> str:
    """Returns the dotted name of a form's module."""
    return f"{__name__}.{FORMS[form].module or form}"


def module_of(form: str) -> ModuleType:
    """Returns a form's module. Raises `ImportError` where a package that it needs is missing."""
    return importlib.import_module(module_name(form))


def form_of(part: Path) -> str:
    """Returns the form of a part of stored samples, by the names of its files; "" for none of these."""
    for name, form in FORMS.items():
        if form.mark and (part / form.mark).exists():
            return name
    return ""


def is_installed(form: str) -> bool:
    """Returns whether this Python has the package that a form needs."""
    return importlib.util.find_spec(FORMS[form].package) is not None
