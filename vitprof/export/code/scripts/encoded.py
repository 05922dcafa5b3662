"""Feed a training loop: worker processes decode images, kept in another form, into whole batches of uint8."""

import os
from pathlib import Path

from vitprof.export.code.scripts.files import *
from vitprof.forms.hdf5 import Reader, Writer

STORAGE = "hdf5-encoded"  # one of hdf5-encoded


class InForm(Files):
    """The files in another form, one value for each."""

    names = ("jpg",)

    def __init__(self, root: Path):
        super().__init__(root)
        self.reader = None
        self.process = None
        # Delete it when your data change.
        self.folder = made_once(root.with_name(f"{root.name}.{STORAGE}"), self.write)

    def write(self, new: Path):
        new.mkdir()
        writer = Writer(new, self.names)
        for index in range(len(self.paths)):
            writer.add([super().encoded(index)])
        writer.finish()
        writer.close()

    def encoded(self, index: int) -> bytes:
        # Once in each process: what is open must not be forked.
        if self.process != os.getpid():
            self.reader = Reader(self.folder, self.names)
            self.process = os.getpid()
        return bytes(self.reader.read(index)[0])

    def __getstate__(self):
        return {**self.__dict__, "reader": None, "process": None}


def files_in(root: Path):
    """Returns the files of a folder, in the form that they are kept in."""
    return InForm(root)
