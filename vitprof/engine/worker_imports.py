"""What a DataLoader's fork server imports once, so that its workers need not.

Only `multiprocessing` imports this module, by name, where the server begins.
"""

import atexit
import contextlib
import importlib
import os

from vitprof.engine import without_collections

NEEDED = ("torch", "torchvision", "cv2", "simplejpeg", "vitprof.engine.loaders.batch_assembly")

with without_collections():
    for name in NEEDED:
        # A package that is missing is named where it is used.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)

# For the server alone, since its forks run no exit handlers. Tearing down an interpreter that has
# loaded PyTorch takes 0.8 s of a core, which the next job would wait for.
atexit.register(os._exit, 0)
