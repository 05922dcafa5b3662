"""Why no training of a command is seen, with what to type, and why a command failed."""

import contextlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from vitprof.jobs.collector import Listener
from vitprof.names import masked

UNSEEN_AFTER_S = 30.0
"""After how long (s) without training that is said."""
IGNORES_PATH = re.compile("-[bBdhiOPqsuvVx]*[EIS][bBdEhiIOPqsSuvVx]*")
"""Options of Python with which it does not load the hook."""
WITHOUT_SIGN = {
    "torch": "PyTorch's DataLoader was imported in no process that has vitprof's hook; if a child trains, start it "
    "with the environment: `subprocess.run(command, env={**os.environ, ...})`",
    "loader": "no process that has vitprof's hook made a DataLoader; write in the script: "
    "`for batch in vitprof.watch(batches):`",
    "batch gradients": "a DataLoader was made, and no batch came of an iterator that vitprof knows; write in the "
    "script: `for batch in vitprof.watch(loader):`",
}
"""Signs, of which a process that trains leaves one, in the order in which it does -> the reason where there is none."""
PYTHON = re.compile(r"python[\d.]*")
LAUNCHER_ERROR = re.compile(r"\w*(?:ChildFailedError|CalledProcessError|ProcessRaisedException)\b")
"""What a launcher raises where a process that it started has failed, whose own error says why."""


def why_failed(path: str, pid: int, command: Sequence[str]) -> str:
    """Returns ": " and the exception that ended the command's process `pid`, or the first one in a process of a
    launcher, from the file of `patching.leave_error`; "" where there was none.
    """
    errors = list[tuple[str, str]]()
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        errors = [(each, line.strip()) for each, _, line in (row.partition(" ") for row in file)]
    own = next((line for each, line in errors if each == str(pid)), "")
    if LAUNCHER_ERROR.match(own) or not (own or PYTHON.fullmatch(os.path.basename(command[0]))):
        own = next((line for _, line in errors if not LAUNCHER_ERROR.match(line)), own)
    return own and f": {masked(own)}"


def why_unseen(
    listener: Listener, command: Sequence[str], directory: str, options: Mapping[str, object]
) -> str:
    """Returns why no training is seen so far, from the signs in `directory`, with what to type and the `options` that
    can't act; "" where training is seen.
    """
    if listener.places.found:
        return ""
    signs = set()
    with contextlib.suppress(OSError):
        signs = {name.partition(".")[2] for name in os.listdir(directory)}
    idle = "".join(
        f"; --{name.replace('_', '-')} can't act on it" for name, value in options.items() if value
    )
    return f"no training was seen: {_reason(command, signs)}{idle}"


def _reason(command: Sequence[str], signs: set[str]) -> str:
    """Returns why no training was seen, and what to type, from the signs that the command's processes left."""
    if old := next((sign for sign in signs if sign.startswith("old ")), ""):
        return f"this Python is {old[4:]}, and vitprof watches 3.10 and newer: start the script with a newer one"
    if "python" not in signs:
        plain = list[str]()
        options = False
        for word in command:
            ignores = options and IGNORES_PATH.fullmatch(word)
            plain.append("".join(c for c in word if c not in "EIS") if ignores else word)
            is_option = options and word.startswith("-") and word not in ("-c", "-m")
            options = is_option or PYTHON.fullmatch(os.path.basename(word)) is not None
        if plain != [*command]:
            typed = shlex.join(word for word in plain if word != "-")
            return f"Python did not load vitprof's hook with this option; type: vitprof watch -- {typed}"
        return (
            "Python did not load vitprof's hook: it was started with -I, -E or -S, without PYTHONPATH, in a container "
            "or on another host; leave PYTHONPATH as it is, or write in it: `for batch in vitprof.watch(loader):`"
        )
    for expected, reason in WITHOUT_SIGN.items():
        if not signs & set(expected.split()):
            return reason
    seen = "with gradients on, " if "gradients" in signs else "under torch.no_grad() only, "
    return (
        f"batches of a DataLoader came {seen}and nothing trained on them: no optimizer of PyTorch's stepped, and no "
        "parameters changed between three backward passes; write around the step: `with vitprof.step():`"
    )


LOG_TAIL_BYTES = 64 << 10
ERROR_LINE = re.compile(r"(?:\[rank\d+\]: ?)?[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*")
"""A traceback's last line; launchers such as torchrun print more after it."""


def error_line(log: Path) -> str:
    """Returns the last line of an exception in a command's log, else its last line; "" without one."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        lines = [
            line.strip()
            for line in file.read().decode(errors="replace").splitlines()
            if line.strip()
        ]
        return masked(
            ([line for line in lines if ERROR_LINE.fullmatch(line)] or lines or [""])[-1]
        )[:400]
    return ""
