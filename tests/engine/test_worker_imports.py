"""What a DataLoader's fork server imports; tests/engine/loaders/test_dataloader.py has a real one, with workers."""

import gc
import subprocess
import sys

import pytest

from vitprof.engine import without_collections
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
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, check=False
    )
    assert (ended.stderr, ended.stdout) == ("", "True True\n")
    assert ended.returncode == 0, (
        "without tearing the interpreter down, which would have kept the status"
    )


@pytest.mark.parametrize("on", [True, False])
def test_collector_is_off_meanwhile_and_as_before_afterwards(on: bool) -> None:
    frozen = gc.get_freeze_count()
    try:
        if not on:
            gc.disable()
        with without_collections():
            assert not gc.isenabled()
            made: list[list[int]] = [[] for _ in range(1000)]
        assert gc.isenabled() == on
        assert gc.get_freeze_count() >= frozen + len(made)
    finally:
        gc.enable()
