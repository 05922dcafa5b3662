"""Files that a script opens for writing, in its process and in one that it forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import ROOT

SCRIPT = """
import os, sys
from vitprof.watch import written_files
written_files.install()
os.chdir("below")
os.makedirs("../elsewhere")
open("log.txt", "a").close()
open("log.txt", "a").close()
open("read.txt").close()
open(os.devnull, "w").close()
open("../elsewhere/out.txt", "w").close()
os.makedirs("__pycache__")
open("__pycache__/a.pyc", "w").close()
if os.fork() == 0:
    os.close(os.open("forked.bin", os.O_WRONLY | os.O_CREAT))
    os._exit(0)
os.wait()
"""


def test_each_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    told = tmp_path / "below" / "told"
    for file in (told, tmp_path / "below" / "read.txt"):
        file.touch()
    variables = {
        "VITPROF_WATCH_TELL": str(told),
        "VITPROF_WATCH_OPENED_UNDER": str(tmp_path / "below"),
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, cwd=tmp_path, env={**os.environ, **variables})
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert lines == [["opened", "log.txt"], ["opened", "forked.bin"]]
