"""A strategy as code to take home: one plain PyTorch script for the user's own data, without vitprof.

`script(config)` puts fragments (`fragments/*.py.txt`) together: one each for what the user's data are, the storage, the
location, the loader and the transfer. `storages`, `loaders` and `transfers` say which of them a config takes and what
stands in their blanks, gathered in a `draft`; `assemble` fills in and joins them; `writing` writes head and settings.
"""

from vitprof.export.code.writing import script

__all__ = ["script"]
