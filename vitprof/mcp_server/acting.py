"""What runs commands: each as a line of vitprof's command line, in a child process."""

import json
import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
from anyio.to_thread import run_sync
from mcp.server.mcpserver.exceptions import ToolError

from vitprof.analysis.verdict.advice import apply
from vitprof.analysis.verdict.answer import Answer
from vitprof.config import own_script
from vitprof.errors import ConfigError
from vitprof.experiments import answers
from vitprof.experiments.tournament import planning
from vitprof.export.markdown import is_to_be_watched_again, next_command
from vitprof.home import temporary_prefix
from vitprof.masking import MASKED
from vitprof.mcp_server import reading
from vitprof.mcp_server.access import Access
from vitprof.mcp_server.children import Children, Ended, Report
from vitprof.mcp_server.results import Doctor, Patched, RunAnswer, TournamentAnswer, Watched
from vitprof.names import harmless
from vitprof.recording.verdict import Advice
from vitprof.store import StoredRun

ENDED_BY_US = 130
"""Exit status of a command that took too long."""
MOST_LINES = 20
"""Lines of a script's output that are returned."""
MOST_CHARACTERS = 500
"""Of each of them."""
NO_PATCH = "no patch: "
"""How the command `patch` begins to say why it prints none."""
NUMBERED = re.compile(r"tournament (\d+) ")
"""Where vitprof names a tournament that it has stored."""


@dataclass(frozen=True)
class Line:
    """A line of vitprof's command line, and where it runs."""

    words: tuple[str, ...]
    directory: Path
    tournament_id: int = 0
    """The tournament that it continues; 0 for any other line."""


async def watch(
    children: Children, line: Line, steps: int, timeout_s: float, report: Report
) -> Watched:
    """Watches a command to its end, or for some time."""
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("mcp")) as folder:
        path = Path(folder) / "run.json"
        words = [*line.words]
        words[1:1] = ["--json", str(path)]
        ended = None
        with anyio.move_on_after(timeout_s):
            ended = await children.run(words, line.directory, report)
        about = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    if ended is None:
        late = f"it was ended after {timeout_s:g} s; give fewer steps than {steps}, or more time"
        if about is None:
            raise ToolError(late)
        # what was measured by then was summed up
        ended = Ended(ENDED_BY_US, "", f"vitprof: {late}\n")
    answer = None
    if about is not None:
        answer = await run_sync(reading.run_answer, int(about["run_id"]))
    return Watched(ended.status, answer, ended.remarks, _script_lines(ended, about is not None))


def _script_lines(ended: Ended, has_run: bool) -> list[str]:
    """Returns the last lines that a script printed, without what vitprof printed after them."""
    lines = ended.out.splitlines()
    if not has_run or ended.status:
        lines += [line for line in ended.err.splitlines() if not line.startswith("vitprof: ")]
    return [harmless(line[:MOST_CHARACTERS]) for line in lines if line.strip()][-MOST_LINES:]


async def tournament(children: Children, line: Line, report: Report) -> TournamentAnswer:
    """Runs a tournament, to its end or to a question; the child prints its results as JSON."""
    ended = await children.run([*line.words], line.directory, report)
    number = line.tournament_id or _number(ended)
    if not number:
        raise ToolError(_why(ended))
    found = await run_sync(reading.tournament_answer, number, ended.remarks)
    if ended.status and not found.question and not any(s["n_runs"] for s in found.settings):
        raise ToolError(_why(ended))
    return found


def _number(ended: Ended) -> int:
    """Returns the number of the tournament that a child ran; 0 where it began none."""
    try:
        return int(json.loads(ended.out)["tournament_id"])
    except (ValueError, KeyError, TypeError):
        named = NUMBERED.search(" ".join(ended.remarks))
        return int(named[1]) if named else 0


def _why(ended: Ended) -> str:
    """Returns the line with which a child failed."""
    lines = ended.remarks or ended.err.split("\n")[-2:] or [f"exit status {ended.status}"]
    return harmless(" ".join(line.strip() for line in lines[-1:]) or f"exit status {ended.status}")


async def doctor(children: Children, access: Access) -> Doctor:
    ended = await children.run(["doctor", "--json"], access.folder)
    try:
        checks = json.loads(ended.out)["checks"]
    except ValueError:
        raise ToolError(_why(ended)) from None
    return Doctor(all(check["verdict"] != "bad" for check in checks), checks)


async def read_trace(
    children: Children,
    access: Access,
    path: str,
    batch_size: int | None,
    workers: int | None,
) -> RunAnswer:
    """Reads a trace of torch.profiler as a run of the store."""
    file = await run_sync(access.file, "path", path)
    words = ["read", "--json"]
    if batch_size is not None:
        words.append(f"--batch-size={batch_size}")
    if workers is not None:
        words.append(f"--workers={workers}")
    ended = await children.run([*words, "--", str(file)], access.folder)
    if ended.status:
        raise ToolError(_why(ended))
    about = json.loads(ended.out)
    return await run_sync(reading.run_answer, int(about["run_id"]))


async def patch(
    children: Children, access: Access, tournament_id: int, line: int | None
) -> Patched:
    """Prints what a tournament recommends as a diff. Nothing is written."""
    directory = await run_sync(reading.check_patch, access, tournament_id)
    words = ["patch", str(tournament_id)]
    if line is not None:
        words += ["--line", str(line)]
    ended = await children.run(words, directory)
    # why there is none, and what to do by hand, is an answer, too
    is_answered = any(remark.startswith(NO_PATCH) for remark in ended.remarks)
    if ended.status and not is_answered:
        raise ToolError(_why(ended))
    return Patched(ended.out, ended.remarks)


# The lines


def watch_line(access: Access, command: Sequence[str], directory: str, steps: int) -> Line:
    folder = access.directory(directory)
    access.check_command(command, folder)
    return Line(("watch", "--steps", str(steps), "--", *command), folder)


def script_line(
    access: Access, command: Sequence[str], directory: str, vary: Sequence[str], more: Sequence[str]
) -> Line:
    """Returns the tournament on a user's own script."""
    if not vary:
        raise ConfigError("vary", "", 'name arguments of the DataLoader: ["workers=0,2,4"]')
    folder = access.directory(directory)
    access.check_command(command, folder)
    varied = [f"--vary={text}" for text in vary]
    return Line(("tournament", "script", *varied, *more, "--json", "--", *command), folder)


def jobs_line(access: Access, strategies: Sequence[str], more: Sequence[str]) -> Line:
    """Returns the tournament of strategies on jobs of vitprof's own."""
    words = ("tournament", f"--strategies={','.join(strategies)}", *more, "--json")
    return Line(words, access.folder)


def resume_line(
    access: Access, tournament_id: int, *, yes: bool, more_rounds: int | None = None
) -> Line:
    words = ["tournament", "resume", str(tournament_id), "--json"]
    if more_rounds is not None:
        words.append(f"--more-rounds={more_rounds}")
    if yes:
        words.append("--yes")
    return Line(tuple(words), access.folder, tournament_id)


def plan_line(access: Access, command: Sequence[str], directory: str, forms: Sequence[str]) -> Line:
    """Returns the line that tries the samples of a script's Dataset in other forms."""
    folder = access.directory(directory)
    access.check_command(command, folder)
    words = ["convert", "--plan", "--json"]
    if forms:
        words.append(f"--forms={','.join(forms)}")
    return Line((*words, "--", *command), folder)


def proof_line(access: Access, run_id: int, place: int | None, more: Sequence[str]) -> Line:
    """Returns the line that proves an advice of a run.

    Without a place it is that of the run's fix; of a user's script, what its answer names to type next,
    which compares numbers of workers where the fix is no argument of the DataLoader. The line is empty
    for a job of vitprof's own, whose proof is stored first: see `make_proof`.
    """
    with reading.open_store() as store:
        run = store.run(run_id)
        answer = answers.answer_of_run(store, run)
    if answer is None or not answer.is_conclusive:
        why = answer.reason if answer is not None else f"it is {run.status}"
        raise ConfigError("run_id", run_id, f"it has no verdict, so nothing to prove: {why}")
    if place is not None and not 0 <= place < len(answer.advice):
        raise ConfigError("advice", place, f"this run has {len(answer.advice)}, the first is 0")
    if not own_script.is_own_script(run.config):
        _advised(run, answer, place)
        return Line((), access.folder)
    command = _command(run)
    if place is None and is_to_be_watched_again(answer):
        why = "other programs hide what is slow; end them, and call `watch` again"
        raise ConfigError("run_id", run.id, why)
    if place is None:
        typed = next_command(run, replace(answer, proof=None))
    else:
        typed = own_script.to_prove(answer.advice[place].arguments, command)
    return _own_proof(access, run, typed, more)


def make_proof(access: Access, run_id: int, place: int | None) -> Line:
    """Stores the proof of an advice on a job of vitprof's own, and returns the line that runs it."""
    with reading.open_store() as store:
        run = store.run(run_id)
        answer = answers.answer_of_run(store, run)
        if answer is None:
            raise ConfigError("run_id", run_id, f"it is {run.status}")
        advised = apply(run.config, _advised(run, answer, place).settings)
        spec = planning.in_turns(run.config, advised, of_run=run.id)
        number = planning.create_tournament(store, spec)
    return resume_line(access, number, yes=False)


def _advised(run: StoredRun, answer: Answer, place: int | None) -> Advice:
    """Returns the advice at a place, by default the fix. Raises `ConfigError` where no run can show it."""
    at = place
    if at is None and answer.fix is not None:
        at = answer.fix.place
    if at is None or not answer.advice[at].settings:
        raise ConfigError("run_id", run.id, "nothing is advised that runs can prove")
    return answer.advice[at]


def _command(run: StoredRun) -> str:
    command = str(run.facts.get("command") or "")
    if MASKED in command:
        why = "its command has secrets, which are not stored; call `tournament` with all of it"
        raise ConfigError("run_id", run.id, why)
    return command


def _own_proof(access: Access, run: StoredRun, typed: str, more: Sequence[str]) -> Line:
    """Returns the tournament that a person would type to prove an advice on their script."""
    if not typed or not run.facts.get("directory"):
        why = "its advice is no argument of the DataLoader; change the script and watch it again"
        raise ConfigError("run_id", run.id, why)
    words = shlex.split(typed)
    at = words.index("tournament")
    dashes = words.index("--", at)
    vary = [word for word in words[at + 1 : dashes] if word != "--vary"]
    return script_line(access, words[dashes + 1 :], str(run.facts["directory"]), vary, more)
