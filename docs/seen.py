"""Writes what one sees into the guide, by running it: `python -m docs.seen`, in some minutes, best on a quiet machine.

Each block of output in the last section of a guide is replaced by what its commands print now. They run the
scripts of `docs/examples/`, as `train.py` in a folder of their own, with a store of their own.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from vitprof import demo

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SECTION = "\n## What you see\n"
BLOCK = re.compile(r"(?<=^```text\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
LEFT_OUT = re.compile(r"[┌│├└┏┃┡━]|W\d{4} ")
"""Lines of tables, which say no more than the sentences below them, and warnings of torchrun."""
WIDTH = 128

SEEN = {
    "starved.md": ["vitprof runs 5"],
    "slow-loader.md": ["vitprof watch --steps 100 -- python train.py"],
    "ci.md": ["vitprof check 1 --max-idle 10% --min-samples-per-s 100"],
    "my-data.md": ["vitprof datasets add pets folder:images", "vitprof data -- python train.py"],
    "cluster.md": ["vitprof watch --steps 120 -- torchrun --nproc-per-node 2 train.py"],
}
"""Guide -> what is typed for each of its blocks."""
SCRIPTS = {
    "slow-loader.md": "slow_drive.py",
    "ci.md": "slow_drive.py",
    "my-data.md": "images.py",
    "cluster.md": "two_ranks.py",
}
"""Guide -> the script that is `train.py` there."""
FIRST = {"ci.md": "vitprof watch --steps 100 -- python train.py"}
"""Guide -> what is typed before, whose output is not shown."""


def seen(page: str, folder: Path) -> list[str]:
    """Returns what the commands of a guide print, in the empty folder `folder`."""
    home = folder / "home"
    os.environ["VITPROF_HOME"] = str(home)
    if page == "starved.md":
        home, _ = demo.make_home()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
        "VITPROF_HOME": str(home),
    }
    work = folder / "work"
    work.mkdir()
    if page in SCRIPTS:
        shutil.copyfile(DOCS / "examples" / SCRIPTS[page], work / "train.py")
    if page == "my-data.md":
        make = [sys.executable, str(DOCS / "examples" / "make_images.py")]
        subprocess.run(make, cwd=work, env=environment, check=True)
    if page in FIRST:
        typed(FIRST[page], work, environment)
    return [typed(line, work, environment) for line in SEEN[page]]


def typed(line: str, work: Path, environment: dict[str, str]) -> str:
    """Returns what a command prints, as an installed vitprof would, in lines of at most `WIDTH` characters."""
    command = [sys.executable, "-m", *shlex.split(line)]
    ended = subprocess.run(
        command,
        cwd=work,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    text = ended.stdout.replace(f"PYTHONPATH={ROOT} ", "").replace("python -m vitprof", "vitprof")
    text = text.replace(str(work), "/home/ada")
    shown = [f"$ {line}"]
    for printed in text.splitlines():
        if printed.strip() and not LEFT_OUT.match(printed):
            indent = " " * (len(printed) - len(printed.lstrip()) + 2)
            shown += textwrap.wrap(printed, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    if ended.returncode:
        shown += ["$ echo $?", str(ended.returncode)]
    return "\n".join(shown) + "\n"


def replaced(text: str, outputs: list[str]) -> str:
    """Returns the text of a guide with its first blocks of output replaced, one for each of `outputs`."""
    before, section, last = text.rpartition(SECTION)
    left = iter(outputs)
    return before + section + BLOCK.sub(lambda block: next(left, block[0]), last)


def main() -> None:
    """Writes the guides that the command names, such as `slow-loader.md`; all if it names none."""
    for page in sys.argv[1:] or SEEN:
        with tempfile.TemporaryDirectory() as folder:
            outputs = seen(page, Path(folder))
        path = DOCS / "guide" / page
        path.write_text(replaced(path.read_text(encoding="utf-8"), outputs), encoding="utf-8")
        sys.stdout.write(f"docs/guide/{page} written\n")


if __name__ == "__main__":
    main()
