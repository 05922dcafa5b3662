"""The change of a user's own script that a tournament on it recommends, as a patch of its file.

A patch is made only where it is sure: of the call that made the DataLoader which trained, and where the
call has each value itself or lacks it. For all else `NoPatch` says what to do by hand.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitprof import formats
from vitprof.config.own_script import OwnScript, code_line
from vitprof.errors import ConfigError, VitprofError
from vitprof.export import new_file
from vitprof.export.patch.calls import (
    Source,
    SourceCall,
    check_compiles,
    name_of,
    read_source,
)
from vitprof.export.patch.edits import Change, edited, quote_of
from vitprof.export.patch.origins import NO_LITERAL, literal, shown, what_to_do
from vitprof.export.patch.script_file import ScriptFile, find_script_file
from vitprof.export.patch.unified import unified_diff
from vitprof.export.patch.wanted import NoPatch, Wanted, wanted_of

TRAINS = re.compile("train", re.IGNORECASE)
EVALUATES = re.compile("(?<![a-z])(val|test|eval|dev(?!ice))", re.IGNORECASE)
MOST_CALLS = 6
"""The most calls that are listed to choose from."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of a file."""

    file: ScriptFile
    after: bytes
    """The whole file as it is to be."""
    line: int
    """Where the call begins that makes the loader."""
    remarks: tuple[str, ...]
    """What to know of the change."""

    @property
    def is_empty(self) -> bool:
        """Returns whether the file has all that the setting asks for already."""
        return self.after == self.file.data

    def diff(self, name: str) -> bytes:
        """Returns it as a unified diff in which the file is called `name`."""
        return unified_diff(name, self.file.data, self.after)


def make_patch(script: OwnScript, key: str, line: int | None = None) -> Patch:
    """Returns the change that makes the setting `key` of a tournament the script's own.

    `line`: where the call of DataLoader to change begins; None: the one that made the loader which
    trained. Raises `NoPatch`, `ConfigError` where a line has to be given or another one, and
    `VitprofError` where the file cannot be read.
    """
    wanted = wanted_of(script, key)
    if not wanted.needed:
        what = " and ".join(wanted.by_hand)
        raise NoPatch(f"no patch: no argument of the DataLoader makes that; do by hand: {what}")
    by_package = _why_not_of_script(script, key)
    if by_package and not _may_be_wrapped(script):
        raise NoPatch(by_package)
    file = find_script_file(script)
    source = read_source(file.name, file.data)
    if by_package and not _is_own_call(script, file, source):
        raise NoPatch(by_package)
    call, how = _call_that_made(script, file, source, wanted, line)
    if file.changed is not False and "num_workers" not in wanted.values:
        _check_workers(script, file, source, call)
    changes = _changes(file, source, call, wanted)
    after = file.data
    if changes:
        after = source.with_call(call, edited(call.node, changes, quote_of(source.module)))
        check_compiles(file.name, after)
    remarks = [*how, *_shared(script, source, call), *_not_in_it(wanted)]
    return Patch(file, after, call.line, tuple(remarks))


def _not_in_it(wanted: Wanted) -> list[str]:
    if not wanted.by_hand:
        return []
    what = " and ".join(wanted.by_hand)
    return [f"the patch is a part of what was measured together; do by hand: {what}"]


def _why_not_of_script(script: OwnScript, key: str) -> str:
    """Returns that a package's code called DataLoader, and what to write; "" where the script's own did."""
    loader = script.loader or {}
    where = loader.get("made_where")
    framework = loader.get("framework")
    if loader.get("made_by_script") or not (where or framework):
        return ""
    by = framework or loader.get("made_by_package") or "a package"
    at = f", called from {where}" if where else ""
    return f"no patch: {by} makes the DataLoader{at}; write {code_line(script, key)}"


def _may_be_wrapped(script: OwnScript) -> bool:
    """Returns whether a framework's code stands between the script's call of DataLoader and PyTorch's.

    Lightning 2.6 wraps `DataLoader.__init__` while `train_dataloader()` runs
    (`lightning/fabric/utilities/data.py`, `_replace_dunder_methods`).
    """
    return "lightning" in str((script.loader or {}).get("framework"))


def _is_own_call(script: OwnScript, file: ScriptFile, source: Source) -> bool:
    """Returns whether the script's line that led to a loader has a call of DataLoader with its arguments,
    and only one."""
    given = frozenset(str((script.loader or {}).get("made_given") or "").split())
    line = file.line
    if line is None or file.changed is not False:
        return False
    there = [call for call in source.calls if call.is_dataloader and call.spans(line)]
    return [call.given for call in there] == [given]


def _call_that_made(
    script: OwnScript, file: ScriptFile, source: Source, wanted: Wanted, line: int | None
) -> tuple[SourceCall, list[str]]:
    """Returns the call that made the loader which trained, and what to know of how it was found.

    Raises `NoPatch`, and `ConfigError` where `line` is needed or cannot be right.
    """
    if file.line is not None and file.changed is False:
        call = _call_at(script, file, source, file.line)
        if line is not None and not call.spans(line):
            why = f"the loader that trains is made in line {call.line} of {file.name}; leave it out"
            raise ConfigError("line", line, why)
        return call, []
    dataloaders = [call for call in source.calls if call.is_dataloader]
    if line is not None:
        return _chosen(file, dataloaders, line), []
    return _fitting_call(script, file, source, wanted, dataloaders)


def _fitting_call(
    script: OwnScript,
    file: ScriptFile,
    source: Source,
    wanted: Wanted,
    dataloaders: Sequence[SourceCall],
) -> tuple[SourceCall, list[str]]:
    """Returns the call of DataLoader with the arguments of the one that trained, where its line is not known
    any more; and what to know of how it was found. Raises as `_call_that_made`.
    """
    if not dataloaders:
        raise NoPatch(
            f"no patch: {file.name} has no call that its imports show to be PyTorch's DataLoader"
        )
    fitting = list(dataloaders)
    given = (script.loader or {}).get("made_given")
    if given is not None:
        fitting = [call for call in dataloaders if _may_have_made(call, given, wanted)]
    if not fitting:
        why = "none of them with the arguments that it had; give the line to change"
        raise ConfigError("line", "none", f"{_listed(file, dataloaders)}, {why}")
    if len(fitting) == 1:
        return fitting[0], []
    training = [call for call in fitting if _trains(source, call)]
    if len(training) == 1:
        (call,) = training
        what = f"of {len(fitting)} calls that fit, that in line {call.line} is taken"
        return call, [f"{what}, by its name or shuffling; --line takes another one"]
    raise ConfigError("line", "none", f"{_listed(file, fitting)}; give the line to change")


def _call_at(script: OwnScript, file: ScriptFile, source: Source, line: int) -> SourceCall:
    """Returns the call in a line of the file as it ran. Raises `NoPatch` where it may be several.

    The line ran `DataLoader.__init__` with the noted arguments. So a class derived from DataLoader is
    found there, too, whatever its name.
    """
    given = str((script.loader or {}).get("made_given") or "")
    there = [call for call in source.calls if call.line == line]
    if not any(call.is_dataloader for call in there):
        there += [call for call in source.calls if call.spans(line) and call.is_dataloader]
    if any(call.callee.endswith("__init__") for call in there):
        why = f"line {line} of {file.name} begins a class derived from DataLoader"
        raise NoPatch(f"no patch: {why}, for all its loaders", *_by_hand_at(script, file, line))
    known = [call for call in there if call.is_dataloader]
    exact = [call for call in known if call.given in (None, frozenset(given.split()))]
    if not known:
        exact = [
            call for call in there if call.given == frozenset(given.split()) and call.node.args
        ]
    if len(exact) != 1:
        what = "several calls that it may be" if exact else "no call with the arguments that it had"
        why = f"line {line} of {file.name}, which made the DataLoader, has {what}"
        raise NoPatch(f"no patch: {why}", *_by_hand_at(script, file, line))
    return exact[0]


def _by_hand_at(script: OwnScript, file: ScriptFile, line: int) -> list[str]:
    return [f"see {file.path}:{line}, and give its DataLoader the arguments yourself"]


def _may_have_made(call: SourceCall, made_given: str, wanted: Wanted) -> bool:
    """Returns whether a call has the arguments of the one that made the loader, patched or not."""
    if call.given is None:
        return False
    asked = frozenset(wanted.values)
    return call.given - asked == frozenset(made_given.split()) - asked


def _trains(source: Source, call: SourceCall) -> bool:
    """Returns whether a call looks as if it made the loader that trains: by the name that it is given,
    or as it shuffles."""
    named_train = bool(TRAINS.search(call.target))
    named_other = bool(EVALUATES.search(call.target))
    if named_train or named_other:
        return named_train and not named_other
    shuffled = (
        argument
        for at, argument in enumerate(call.node.args)
        if not argument.star and name_of(at, argument) == "shuffle"
    )
    return any(literal(source, argument.value) is True for argument in shuffled)


def _chosen(file: ScriptFile, dataloaders: Sequence[SourceCall], line: int) -> SourceCall:
    """Returns the call of DataLoader in a line that the user gave. Raises `ConfigError`."""
    there = [call for call in dataloaders if call.line == line]
    if len(there) != 1:
        many = "several calls" if there else "no call"
        has = f"{file.name} has {many} of DataLoader that begin there"
        if not there and dataloaders:
            has += f"; {_listed(file, dataloaders)}"
        raise ConfigError("line", line, has)
    return there[0]


def _listed(file: ScriptFile, calls: Sequence[SourceCall]) -> str:
    places = []
    for call in calls[:MOST_CALLS]:
        place = f"line {call.line}"
        places.append(f"{place} ({shorter(call.target)})" if call.target else place)
    if len(calls) > MOST_CALLS:
        places.append(f"{len(calls) - MOST_CALLS} more")
    n_calls = formats.count(len(calls), "call")
    return f"{file.name} has {n_calls} of DataLoader that it may be: {', '.join(places)}"


def shorter(code: str) -> str:
    """Returns what takes a loader, in a line."""
    line = " ".join(code.split())
    return line if len(line) <= 30 else f"{line[:27]}..."


def _changes(
    file: ScriptFile, source: Source, call: SourceCall, wanted: Wanted
) -> tuple[Change, ...]:
    """Returns the changes of a call. Raises `NoPatch` where it does not have all values itself."""
    if call.given is None:
        stars = [argument for argument in call.node.args if argument.star]
        where = f"the DataLoader in line {call.line} of {file.name}"
        if not stars:
            raise NoPatch(f"no patch: {where} takes arguments that PyTorch's does not")
        hidden = " and ".join(f"{each.star}{shown(source, each.value)}" for each in stars)
        todo = f"see that they come to {wanted.as_keywords()}"
        raise NoPatch(f"no patch: arguments of {where} come from {hidden}", todo)
    at_names = {name_of(at, argument): at for at, argument in enumerate(call.node.args)}
    changes = []
    elsewhere = []
    for name, value in wanted.values.items():
        at = at_names.get(name)
        if at is None:
            if name in wanted.needed:
                changes.append(Change(name, value, None))
            continue
        argument = call.node.args[at]
        now = literal(source, argument.value)
        if now is NO_LITERAL:
            todo = what_to_do(source, call, argument.value, value)
            line = source.line(argument)
            elsewhere.append(f"{name} is {shown(source, argument.value)}, line {line}: {todo}")
        elif now == value:
            continue
        elif name not in wanted.needed and argument.keyword is not None:
            changes.append(Change(name, value, at, removes=True))
        else:
            changes.append(Change(name, value, at))
    if elsewhere:
        raise NoPatch(*_elsewhere(file, call, elsewhere, changes))
    return tuple(changes)


def _check_workers(script: OwnScript, file: ScriptFile, source: Source, call: SourceCall) -> None:
    """Raises `NoPatch` where a file that may have changed has another number of workers than was measured.

    A prefetch_factor was measured with that number, and without workers PyTorch refuses it.
    """
    measured = int((script.loader or {}).get("num_workers") or 0)
    argument = next(
        (
            argument
            for at, argument in enumerate(call.node.args)
            if not argument.star and name_of(at, argument) == "num_workers"
        ),
        None,
    )
    workers = 0 if argument is None else literal(source, argument.value)
    if workers is not NO_LITERAL and workers != measured:
        has = f"line {call.line} of {file.name} has num_workers={workers!r}"
        raise NoPatch(f"no patch: {has}, and the tournament was run with {measured}")


def _elsewhere(
    file: ScriptFile, call: SourceCall, elsewhere: Sequence[str], changes: Sequence[Change]
) -> list[str]:
    """Returns what to do where the call does not have all values itself."""
    lines = [
        f"no patch: the DataLoader in line {call.line} of {file.name} has values from elsewhere",
        *elsewhere,
    ]
    own = [f"{change.name}={change.value!r}" for change in changes if not change.removes]
    if own:
        lines.append(f"and give it {', '.join(own)}")
    gone = [change.name for change in changes if change.removes]
    if gone:
        lines.append(f"and leave {', '.join(gone)} out")
    return lines


def _shared(script: OwnScript, source: Source, call: SourceCall) -> list[str]:
    """Returns a remark where the call makes other loaders, too: trials changed the one that trains."""
    lines = source.lines_of.get(call.function, ()) if call.function else ()
    if len(lines) > 1:
        called = ", ".join(map(str, lines[:MOST_CALLS]))
        why = f"{call.function}, which makes it, is called in lines {called}"
    elif call.loop_names:
        why = f"it is made in a loop over {', '.join(sorted(call.loop_names))}"
    elif (script.loader or {}).get("made_alone") is False:
        why = f"line {call.line} makes several"
    else:
        return []
    return [f"other loaders may change, too, and trials changed only the one that trains: {why}"]


def apply_patch(patch: Patch) -> Path:
    """Writes the changed file as a whole, with the mode and the owner that it has, and returns its path.

    Where it is a link, that is the file to which it leads. Raises `VitprofError`.
    """
    path = patch.file.path.resolve()
    if not os.access(path, os.W_OK):
        raise VitprofError(f"{path} cannot be written: it is not yours to write")
    with new_file(path) as out:
        about = path.stat()
        if path.read_bytes() != patch.file.data:
            raise VitprofError(f"{path} has changed just now; nothing was written")
        out.write(patch.after)
        # of another user's file, as far as the system allows it
        with contextlib.suppress(OSError):
            os.fchown(out.fileno(), about.st_uid, about.st_gid)
        os.fchmod(out.fileno(), stat.S_IMODE(about.st_mode))
    return path
