"""The part of the package that reads; it may import PyTorch."""

from vitprof.engine.storage.arrays import FORMAT, MemmapStorage

__all__ = ["FORMAT", "ToyStorage"]


class ToyStorage(MemmapStorage):
    """As short as can be; what there is to write is in vitprof's own storages."""
