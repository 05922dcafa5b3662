"""The answer on a run in a few lines of Markdown, to paste into an issue or a chat, and what to type
next.
"""

from vitprof import __version__, formats
from vitprof.analysis.verdict import answer as answers
from vitprof.analysis.verdict.advice_rules import END_OTHERS
from vitprof.analysis.verdict.answer import Answer
from vitprof.config import own_script
from vitprof.program import from_anywhere
from vitprof.recording.verdict import advised_workers
from vitprof.store import StoredRun

NOT_CONCLUSIVE = "see the reason above, and run again"


def answer_markdown(run: StoredRun, answer: Answer) -> str:
    """Returns the answer as Markdown of at most twelve lines, the last one with what was measured."""
    lines = [f"**{_plain(answer.headline)}.** {_plain(answer.reason)}", ""]
    lines += [f"- {question} {_plain(words)}" for question, words in answers.lines(answer)]
    details = [words for words in (answer.details, answer.remark) if words]
    lines += [f"- {_plain(words)}" for words in details]
    step = next_step(run, answer)
    if step:
        lines.append(f"- **Next:** {step}")
    lines += ["", f"_{_measured(run)}_"]
    return "\n".join(lines) + "\n"


def next_step(run: StoredRun, answer: Answer) -> str:
    """Returns the line to type next, as Markdown code, or what to do instead; "" where nothing is
    left to do.
    """
    if not answer.is_conclusive:
        return NOT_CONCLUSIVE
    line = next_command(run, answer)
    return f"`{line}`" if line else ""


def next_command(run: StoredRun, answer: Answer) -> str:
    """Returns the command to type next: what proves the fix, or writes one that is proven; "" where
    there is none."""
    is_own = own_script.is_own_script(run.config)
    if answer.proof is not None and answer.proof.quiet:
        return answer.proof.patch_command
    if answer.fix is None or not is_own:
        return ""
    return _to_prove(run, answer)


def is_to_be_watched_again(answer: Answer) -> bool:
    """Returns whether a run shows nothing to prove until other programs have ended."""
    return answer.fix is not None and answer.fix.words == END_OTHERS.words


def meanwhile_command(run: StoredRun, answer: Answer) -> str:
    """Returns the tournament that says, also while other programs run, how much workers gain at least, where
    a watched script is to be watched again without these; "" elsewhere."""
    command = str(run.facts.get("command") or "")
    if not command or not is_to_be_watched_again(answer):
        return ""
    return own_script.to_compare(run.environment, run.config.workers or 0, command)


def _to_prove(run: StoredRun, answer: Answer) -> str:
    """Returns the tournament that proves the fix for a watched script, or compares numbers of
    workers where the fix is no argument of its DataLoader; where other programs make the cause
    unclear, the command that watches it again."""
    command = str(run.facts.get("command") or "")
    if not command or answer.fix is None:
        return ""
    if is_to_be_watched_again(answer):
        return f"{from_anywhere()} watch -- {command}"
    if answer.fix.place is not None:
        line = own_script.to_prove(answer.advice[answer.fix.place].arguments, command)
        if line:
            return line
    advised = advised_workers(answer.advice)
    return own_script.to_compare(run.environment, run.config.workers or 0, command, advised)


def _measured(run: StoredRun) -> str:
    """Returns what was measured where, by which version."""
    of = str(run.environment.get("device_name") or run.config.device)
    if run.summary is not None:
        n_epoch_starts = run.verdict.n_epoch_starts if run.verdict is not None else 0
        of = f"{formats.steps(run.summary.n_steady_steps, n_epoch_starts)} on {of}"
    return f"vitprof {__version__}, run {run.id}: {_plain(of)}"


def _plain(text: str) -> str:
    """Returns text that Markdown shows as it is, also the names of a user's classes."""
    return "".join(f"\\{c}" if c in "\\`*_<>[]|" else c for c in text)
