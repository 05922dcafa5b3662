"""What happens to a batch: read, decoded, collated, moved to the device, trained on, timed.

In the job's process.

Here is what its imports share: those of large packages, such as PyTorch, make millions of objects.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Keeps the garbage collector off while modules are imported, and from then on off what they
    have made.

    Imports leave hardly any garbage, and collections would take a sixth of their time. Later, in a
    forked process, each collection would copy the pages of everything imported (copy-on-write).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
