"""Feed a training loop: the pixels of each image under a key of LMDB, prepared once; a batch is one transaction."""

from contextlib import closing

from vitprof.export.code.scripts.rows import *
from vitprof.forms.lmdb import Reader, Writer

STORAGE = "lmdb"  # one of lmdb


class Lmdb(RawFiles):
    """A key for each image; a batch is one transaction."""

    def write(self, images):
        self.path.mkdir()
        with closing(Writer(self.path, ["bin"])) as writer:
            for image in images:
                writer.add([image.tobytes()])
            writer.finish()

    def open(self):
        return Reader(self.path, ["bin"])

    def read(self, indices, out):
        self.handle().read_rows(indices.tolist(), out.view(len(out), -1).numpy())
        return out


def storage_kind():
    """Returns the class of the storage, and how the name of what is prepared ends."""
    return Lmdb, ".lmdb"
