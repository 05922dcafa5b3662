"""HDF5 files as people have them. What is ambiguous is refused with what to write."""

from vitprof.sets.hdf5.file import hdf5_set

__all__ = ["hdf5_set"]
