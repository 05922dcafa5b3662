"""Why no training of a command is seen, with what to type, and why a command failed."""

import contextlib
import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from vitprof.jobs.collector import Listener
from vitprof.masking import masked

UNSEEN_AFTER_S = 30.0
"""After how long (s) without training a watched command is told why none is seen."""
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
"""Signs that a process leaves on its way to training, in order -> the reason if no process left them."""
PYTHON = re.compile(r"python[\d.]*")
LAUNCHER_ERROR = re.compile(r"\w*(?:ChildFailedError|CalledProcessError|ProcessRaisedException)\b")
"""What a launcher raises where a process that it started has failed, whose own error says why."""
WORKER_KILLED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: ([^.]+)\.")
"""What PyTorch says of a worker that a signal ended: the signal by `strsignal`, such as "Bus error"."""


def why_failed(path: str, pid: int, command: Sequence[str]) -> str:
    """Returns ": " and the exception that ended the command's process `pid`; where that is a launcher,
    the first exception of a process that it started. "" where there was none.

    `path`: the file of `patching.leave_error`, with a process id and an error in each line.
    """
    errors = list[tuple[str, str]]()
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        for row in file:
            process, _, line = row.partition(" ")
            errors.append((process, line.strip()))
    error = next((line for process, line in errors if process == str(pid)), "")
    is_python = PYTHON.fullmatch(os.path.basename(command[0])) is not None
    # a launcher that is no Python program leaves no error of its own
    if LAUNCHER_ERROR.match(error) or (not error and not is_python):
        causes = (line for _, line in errors if not LAUNCHER_ERROR.match(line))
        error = next(causes, error)
    return f": {masked(error)}" if error else ""


def worker_signal(why: str) -> int | None:
    """Returns the signal that ended a worker of the script's loader, where that is why it failed."""
    found = WORKER_KILLED.search(why)
    names = {signal.strsignal(number): int(number) for number in signal.valid_signals()}
    return None if found is None else names.get(found[1])


def why_unseen(
    listener: Listener, command: Sequence[str], directory: str, options: Mapping[str, object]
) -> str:
    """Returns why no training is seen so far, with what to type and the `options` that can't act;
    "" where training is seen.

    `directory`: where the hook in each process leaves signs, as files named "socket.SIGN".
    """
    if listener.places.has_first:
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
    old = [sign.removeprefix("old ") for sign in signs if sign.startswith("old ")]
    if old:
        return f"this Python is {old[0]}, and vitprof watches 3.10 and newer: start the script with a newer one"
    if "python" not in signs:
        heeding = _heeding_path(command)
        if heeding != [*command]:
            typed = shlex.join(word for word in heeding if word != "-")
            return f"Python did not load vitprof's hook with this option; type: vitprof watch -- {typed}"
        return (
            "Python did not load vitprof's hook: it was started with -I, -E or -S, without PYTHONPATH, in a container "
            "or on another host; leave PYTHONPATH unchanged, or write in it: `for batch in vitprof.watch(loader):`"
        )
    for expected, reason in WITHOUT_SIGN.items():
        if not signs & set(expected.split()):
            return reason
    how = "with gradients on, " if "gradients" in signs else "under torch.no_grad() only, "
    return (
        f"batches of a DataLoader came {how}and nothing trained on them: no optimizer of PyTorch's stepped, and no "
        "parameters changed between three backward passes; write around the step: `with vitprof.step():`"
    )


def _heeding_path(command: Sequence[str]) -> list[str]:
    """Returns `command` without the options with which Python ignores PYTHONPATH: "-Es" becomes "-s"."""
    words = list[str]()
    among_options = False
    for word in command:
        if among_options and IGNORES_PATH.fullmatch(word):
            words.append("".join(letter for letter in word if letter not in "EIS"))
        else:
            words.append(word)
        is_option = among_options and word.startswith("-") and word not in ("-c", "-m")
        among_options = is_option or PYTHON.fullmatch(os.path.basename(word)) is not None
    return words


LOG_TAIL_BYTES = 64 << 10
"""How much of a log's end is searched for an error."""
MOST_SHOWN = 400
"""The most characters that are shown of it."""
ERROR_LINE = re.compile(r"(?:\[rank\d+\]: ?)?[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*")
"""A traceback's last line; launchers such as torchrun print more after it."""


def error_line(log: Path) -> str:
    """Returns the last line of an exception in a command's log, else its last line; "" without one."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        text = file.read().decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if ERROR_LINE.fullmatch(line)]
        if lines:
            return masked((errors or lines)[-1])[:MOST_SHOWN]
    return ""
