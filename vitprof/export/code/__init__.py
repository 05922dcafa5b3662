"""A strategy as code: one plain PyTorch script for the user's own data, without vitprof.

`script(config)` joins fragments (`fragments/*.py.txt`): one each for the user's data, the storage, the location, the
loader and the transfer. `storages`, `loaders` and `transfers` decide which of them a config takes and what goes into
their blanks, and collect both in a `draft`; `assemble` fills in and joins them; `writing` adds docstring and settings.
"""

from vitprof.export.code.writing import script

__all__ = ["script"]
