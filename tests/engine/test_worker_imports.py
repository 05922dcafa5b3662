"""What a DataLoader's fork server imports; tests/engine/loaders/test_dataloader.py has a real one, with workers."""

from __future__ import annotations

import subprocess
import sys

from vitprof.engine.loaders.dataloader import FORK_SERVER_IMPORTS

SCRIPT = """
import gc, importlib, sys
# missing
sys.modules.update(dict.fromkeys(["torchvision", "cv2", "simplejpeg", "vitprof.engine.loaders.batch_assembly"]))
sys.modules["torch"] = sys
importlib.import_module(sys.argv[1])
print(gc.isenabled(), gc.get_freeze_count() > 1_000, flush=True)
sys.exit(1)
"""


def test_what_is_missing_is_left_out_and_the_end_takes_no_time() -> None:
    (name,) = FORK_SERVER_IMPORTS
    ended = subprocess.run([sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, check=False)
    assert (ended.stderr, ended.stdout) == ("", "True True\n")
    assert ended.returncode == 0, "without tearing the interpreter down, which would have kept the status"
