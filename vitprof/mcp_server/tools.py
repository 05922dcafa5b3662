"""The tools, as a client sees them: their arguments, their descriptions, and what each asks first."""

import shlex
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import anyio
from anyio.to_thread import run_sync
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import Field

from vitprof.analysis import thresholds
from vitprof.config import bounds
from vitprof.config.strategies import STRATEGIES
from vitprof.errors import ConfigError
from vitprof.mcp_server import access as allowing
from vitprof.mcp_server import acting, reading
from vitprof.mcp_server.access import Access, Allowed
from vitprof.mcp_server.acting import Line
from vitprof.mcp_server.children import Children
from vitprof.mcp_server.results import (
    Compared,
    Doctor,
    Patched,
    RunAnswer,
    RunList,
    TournamentAnswer,
    Watched,
)
from vitprof.store import RunQuery
from vitprof.watch.core.columns import WARMUP_STEPS

WATCHED_STEPS = 100
TRIAL_STEPS = 100
WATCH_S = 900.0

Any_ = Context[Any, Any]
Answered = ElicitationResult[Allowed]
Command = Annotated[
    list[str], Field(description='the words of a training command: ["python", "train.py"]')
]
Directory = Annotated[str, Field(description="folder to run it in, from the server's own")]
RunId = Annotated[int, Field(description="number of a run, as `runs` lists it")]
TournamentId = Annotated[int, Field(description="number of a tournament")]
Steps = Annotated[int, Field(description="training steps of each run")]
Repeats = Annotated[int, Field(description="rounds; more are added until it is decided")]
TimeS = Annotated[
    float | None, Field(description="seconds for all runs together; no run starts after it")
]


class Server:
    """What the tools of one server share. `of` finds it for a request."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.children = Children()
        self.measuring = anyio.Lock()
        """Held by what measures: two at once would disturb each other."""

    @staticmethod
    def of(context: Any_) -> "Server":
        shared: Server = context.mcp_server.shared  # type: ignore[attr-defined]
        return shared


# Tools that read


async def runs(
    text: Annotated[str, Field(description="words in name, note, tags, strategy or data set")] = "",
    status: Annotated[list[str], Field(description="such as done, failed")] = [],  # noqa: B006
    verdict: Annotated[list[str], Field(description="such as input-bound")] = [],  # noqa: B006
    tag: Annotated[list[str], Field(description="runs with one of these tags")] = [],  # noqa: B006
    limit: Annotated[int, Field(description="runs to list, the newest first")] = 20,
) -> RunList:
    """List the runs in the store, newest first."""
    filters = {"status": status, "verdict": verdict, "tag": tag}
    return await run_sync(reading.run_list, RunQuery(text=text, filters=filters), limit)


async def run(run_id: RunId) -> RunAnswer:
    """Answer for one run: was the device starved, by what, what does a fix gain, what to do next.

    If `conclusive` is false there is no verdict: say the reason, and advise nothing.
    """
    return await run_sync(reading.run_answer, run_id)


async def compare(run_a: RunId, run_b: RunId) -> Compared:
    """Say which of two runs is faster, and how far to trust that.

    Only `firm` is proof: two single runs differ for many reasons.
    """
    return await run_sync(reading.compared, run_a, run_b)


async def results(tournament_id: TournamentId) -> TournamentAnswer:
    """Show what a tournament has shown so far."""
    return await run_sync(reading.tournament_answer, tournament_id)


async def doctor(ctx: Any_) -> Doctor:
    """Check whether this machine has what vitprof needs, with a verdict for each thing."""
    server = Server.of(ctx)
    return await acting.doctor(server.children, server.access)


async def patch(
    ctx: Any_,
    tournament_id: TournamentId,
    line: Annotated[
        int | None, Field(description="line of the DataLoader call, where several may be meant")
    ] = None,
) -> Patched:
    """Print the change of a user's script that a tournament recommends, as a diff. Writes nothing."""
    server = Server.of(ctx)
    return await acting.patch(server.children, server.access, tournament_id, line)


async def read_trace(
    ctx: Any_,
    path: Annotated[
        str, Field(description="a trace that torch.profiler has written, .json or .json.gz")
    ],
    batch_size: Annotated[
        int | None, Field(description="samples of a batch, which no trace tells")
    ] = None,
    workers: Annotated[
        int | None, Field(description="workers of its DataLoader, which no trace tells")
    ] = None,
) -> RunAnswer:
    """Read a trace of torch.profiler as a new run: was the device starved, and by how much.

    Runs nothing. A trace does not say which stage of loading is slow: `watch` does.
    """
    server = Server.of(ctx)
    return await acting.read_trace(server.children, server.access, path, batch_size, workers)


# Tools that run something: each has a line of the command line, and a question


def _refuse_steps(steps: int) -> None:
    bounds.WATCHED_STEPS.check("steps", steps)


def _ask(ctx: Any_, line: Line, words: str, *, always: bool = False) -> Elicit[Allowed] | Allowed:
    access = Server.of(ctx).access
    return allowing.question(access, ctx, words, line.words, always=always)


def _check_allowed(answered: Answered) -> None:
    """Raises `ToolError` unless a person agreed."""
    if not isinstance(answered, AcceptedElicitation) or not answered.data.allow:
        raise ToolError(allowing.NOT_ALLOWED)


def _watch_line(
    ctx: Any_, command: list[str], directory: str, steps: int, timeout_s: float
) -> Line:
    _refuse_steps(steps)
    least = WARMUP_STEPS + thresholds.MIN_STEPS
    if steps < least:
        why = f"the first {WARMUP_STEPS} are its warm-up, and a verdict needs {thresholds.MIN_STEPS} more"
        raise ConfigError("steps", steps, f"give {least} or more: {why}")
    bounds.RUN_BOUNDS["seconds"].check("timeout_s", timeout_s)
    return acting.watch_line(Server.of(ctx).access, command, directory, steps)


def _ask_to_watch(
    ctx: Any_, command: list[str], directory: str, steps: int, timeout_s: float
) -> Elicit[Allowed] | Allowed:
    line = _watch_line(ctx, command, directory, steps, timeout_s)
    words = f"Run `{shlex.join(command)}` in {line.directory} for {steps} training steps, and measure it?"
    return _ask(ctx, line, f"{words} It writes what it always writes.")


async def watch(
    ctx: Any_,
    command: Command,
    allowed: Annotated[Answered, Resolve(_ask_to_watch)],
    directory: Directory = ".",
    steps: Annotated[int, Field(description="training steps; 25 or more")] = WATCHED_STEPS,
    timeout_s: Annotated[float, Field(description="end it after so many seconds")] = WATCH_S,
) -> Watched:
    """Run a user's unchanged training script for some steps and say whether its device is starved.

    Asks the user first. The script really trains and writes what it always writes.
    """
    _check_allowed(allowed)
    server = Server.of(ctx)
    line = await run_sync(_watch_line, ctx, command, directory, steps, timeout_s)
    before = await run_sync(reading.newest_run)

    async def report() -> None:
        number, done = await run_sync(reading.steps_since, before, str(line.directory))
        if number:
            words = f"run {number}: {done} of {steps} steps"
            await ctx.report_progress(min(done, steps), steps, words)

    async with server.measuring:
        return await acting.watch(server.children, line, steps, timeout_s, report)


def _more(steps: int, repeats: int, time_s: float | None) -> list[str]:
    """Returns the options that all tournaments take."""
    _refuse_steps(steps)
    bounds.TOURNAMENT_BOUNDS["repeats"].check("repeats", repeats)
    words = [f"--steps={steps}", f"--repeats={repeats}"]
    if time_s is not None:
        bounds.TOURNAMENT_BOUNDS["seconds"].check("time_s", time_s)
        words.append(f"--time={time_s:g}s")
    return words


def _tournament_line(
    ctx: Any_,
    command: list[str],
    vary: list[str],
    strategies: list[str],
    directory: str,
    steps: int,
    repeats: int,
    time_s: float | None,
) -> Line:
    access = Server.of(ctx).access
    more = _more(steps, repeats, time_s)
    if strategies and (command or vary):
        why = "give either these, for jobs of vitprof's own, or command and vary"
        raise ConfigError("strategies", ",".join(strategies), why)
    if strategies:
        return acting.jobs_line(access, strategies, more)
    return acting.script_line(access, command, directory, vary, more)


def _ask_for_tournament(
    ctx: Any_,
    command: list[str],
    vary: list[str],
    strategies: list[str],
    directory: str,
    steps: int,
    repeats: int,
    time_s: float | None,
) -> Elicit[Allowed] | Allowed:
    line = _tournament_line(ctx, command, vary, strategies, directory, steps, repeats, time_s)
    if strategies:
        words = f"Run jobs with the strategies {', '.join(strategies)} alternately, {repeats} rounds or more?"
        return _ask(ctx, line, words)
    return _ask(ctx, line, _repeated(command, line, f"with {', '.join(vary)}", steps))


def _repeated(command: list[str], line: Line, how: str, steps: int) -> str:
    where = f"`{shlex.join(command)}` in {line.directory}"
    return f"Run {where} again and again, unchanged and {how}, {steps} training steps each time?"


async def tournament(
    ctx: Any_,
    allowed: Annotated[Answered, Resolve(_ask_for_tournament)],
    command: Command = [],  # noqa: B006
    vary: Annotated[
        list[str], Field(description='DataLoader arguments to try: ["workers=0,2,4"]')
    ] = [],  # noqa: B006
    strategies: Annotated[
        list[str],
        Field(description=f"without a command, of vitprof's own jobs: {', '.join(STRATEGIES)}"),
    ] = [],  # noqa: B006
    directory: Directory = ".",
    steps: Steps = TRIAL_STEPS,
    repeats: Repeats = 3,
    time_s: TimeS = None,
) -> TournamentAnswer:
    """Run settings against each other alternately until it is clear which is fastest. This is proof.

    Either a user's script with other DataLoader arguments (command, vary), or strategies. Takes minutes. Asks the
    user first; if the answer has a `question`, call `resume`.
    """
    _check_allowed(allowed)
    line = await run_sync(
        _tournament_line, ctx, command, vary, strategies, directory, steps, repeats, time_s
    )
    return await _run_tournament(ctx, line)


def _proof_line(
    ctx: Any_,
    run_id: int,
    advice: int | None,
    steps: int,
    repeats: int,
    time_s: float | None,
) -> Line:
    more = _more(steps, repeats, time_s)
    return acting.proof_line(Server.of(ctx).access, run_id, advice, more)


def _ask_to_prove(
    ctx: Any_,
    run_id: int,
    advice: int | None,
    steps: int,
    repeats: int,
    time_s: float | None,
) -> Elicit[Allowed] | Allowed:
    line = _proof_line(ctx, run_id, advice, steps, repeats, time_s)
    if not line.words:
        words = f"Run the job of run {run_id} and the advised one alternately, about a minute?"
        return _ask(ctx, Line(("open", str(run_id)), line.directory), words)
    dashes = line.words.index("--")
    varied = [w.removeprefix("--vary=") for w in line.words[:dashes] if w.startswith("--vary=")]
    command = list(line.words[dashes + 1 :])
    return _ask(ctx, line, _repeated(command, line, f"with {', '.join(varied)}", steps))


async def prove(
    ctx: Any_,
    run_id: RunId,
    allowed: Annotated[Answered, Resolve(_ask_to_prove)],
    advice: Annotated[
        int | None, Field(description="place of the advice; the run's fix if not given")
    ] = None,
    steps: Steps = TRIAL_STEPS,
    repeats: Repeats = 3,
    time_s: TimeS = None,
) -> TournamentAnswer:
    """Prove what a run's fix gains: run the script with and without it, alternately.

    Where the fix is no argument of the DataLoader, numbers of workers are compared. Asks the user first; if the answer
    has a `question`, call `resume`.
    """
    _check_allowed(allowed)
    line = await run_sync(_proof_line, ctx, run_id, advice, steps, repeats, time_s)
    if not line.words:
        line = await run_sync(acting.make_proof, Server.of(ctx).access, run_id, advice)
    return await _run_tournament(ctx, line)


def _resume_line(ctx: Any_, tournament_id: int, more_rounds: int | None) -> tuple[Line, str]:
    """Returns the line that goes on with a tournament, and what a person has to agree to; "" without."""
    access = Server.of(ctx).access
    if more_rounds is not None:
        bounds.TOURNAMENT_BOUNDS["repeats"].check("more_rounds", more_rounds)
    question = reading.tournament_answer(tournament_id).question
    _check_script(access, tournament_id)
    line = acting.resume_line(access, tournament_id, yes=bool(question), more_rounds=more_rounds)
    return line, question


def _ask_to_resume(
    ctx: Any_, tournament_id: int, more_rounds: int | None
) -> Elicit[Allowed] | Allowed:
    line, question = _resume_line(ctx, tournament_id, more_rounds)
    if question:
        return _ask(ctx, line, f"{question} Run it?", always=True)
    more = "" if more_rounds is None else f", {more_rounds} rounds more"
    return _ask(ctx, line, f"Go on with tournament {tournament_id}{more}?")


def _check_script(access: Access, tournament_id: int) -> None:
    """Raises `ConfigError` where the script of a tournament is outside of the folders."""
    script = reading.script_of(tournament_id)
    if script is not None:
        access.check_command(script.command, access.directory(script.directory))


async def resume(
    ctx: Any_,
    tournament_id: TournamentId,
    allowed: Annotated[Answered, Resolve(_ask_to_resume)],
    more_rounds: Annotated[
        int | None, Field(description="of one that is done but undecided: rounds to add")
    ] = None,
) -> TournamentAnswer:
    """Go on with a tournament that was paused, is undecided, or has a `question`, which is put to the user."""
    _check_allowed(allowed)
    line, _ = await run_sync(_resume_line, ctx, tournament_id, more_rounds)
    return await _run_tournament(ctx, line)


def _plan_line(ctx: Any_, command: list[str], directory: str, forms: list[str]) -> Line:
    return acting.plan_line(Server.of(ctx).access, command, directory, forms)


def _ask_to_plan(
    ctx: Any_, command: list[str], directory: str, forms: list[str]
) -> Elicit[Allowed] | Allowed:
    line = _plan_line(ctx, command, directory, forms)
    words = (
        f"Run `{shlex.join(command)}` in {line.directory}, store some of its samples in other forms"
    )
    return _ask(ctx, line, f"{words}, and run it again on each?")


async def convert_plan(
    ctx: Any_,
    command: Command,
    allowed: Annotated[Answered, Resolve(_ask_to_plan)],
    directory: Directory = ".",
    forms: Annotated[list[str], Field(description="forms to try; all if not given")] = [],  # noqa: B006
) -> TournamentAnswer:
    """Find out whether a script's data are worth converting: try some samples in other forms.

    Takes minutes. Asks the user first. The data themselves are not changed.
    """
    _check_allowed(allowed)
    line = await run_sync(_plan_line, ctx, command, directory, forms)
    return await _run_tournament(ctx, line)


async def _run_tournament(ctx: Any_, line: Line) -> TournamentAnswer:
    before = await run_sync(reading.newest_tournament)
    number = line.tournament_id
    most = 0.0

    async def report() -> None:
        nonlocal number, most
        number = number or await run_sync(reading.tournament_since, before)
        if number:
            done, words = await run_sync(reading.progress_of, number)
            # the protocol knows no way back, as where a round is added
            most = max(most, done)
            await ctx.report_progress(most, 1.0, f"tournament {number}: {words}")

    server = Server.of(ctx)
    async with server.measuring:
        return await acting.tournament(server.children, line, report)


Tool = Callable[..., Awaitable[Any]]
READ: tuple[Tool, ...] = (runs, run, compare, results, doctor, patch)
RUN: tuple[Tool, ...] = (watch, tournament, prove, resume, convert_plan, read_trace)
