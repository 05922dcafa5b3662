"""`replay`: says what watching makes of the events in a file."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from vitprof import formats
from vitprof.analysis.arrays import Series
from vitprof.analysis.timing import steady
from vitprof.analysis.timing.compute_parts import DividedCompute, divide_compute, divided_in_words
from vitprof.analysis.verdict.verdict import judge
from vitprof.cli.common import terminal
from vitprof.config.own_script import own_config, with_loader
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.recording.verdict import Verdict
from vitprof.watch.core.columns import WARMUP_STEPS, columns_of
from vitprof.watch.core.log import EventLog
from vitprof.watch.core.loop import Steps, find_steps
from vitprof.watch.core.messages import RunTotals, loader_facts, loop_facts, main_loader
from vitprof.watch.core.step_figures import StepFigures
from vitprof.watch.core.training import Training, find_training
from vitprof.watch.event_log import read_event_log
from vitprof.watch.events import Kind

FILE_HELP = "file that `watch --events` has written"
NOTHING: dict[str, Any] = {
    **dict.fromkeys(("steps", "epochs", "unknown_waits"), 0),
    **dict.fromkeys(("samples", "data_wait_s"), 0.0),
    "evaluations": [],
    "fed_by": [],
    "several_threads_train": False,
    "divided_compute": None,
    "verdict": None,
}
"""The JSON object of a log in which nothing trains."""
NO_TRAINING = "no training is in it: no optimizer stepped, and no backward pass changed a parameter"


def replay(
    file: Annotated[Path, typer.Argument(help=FILE_HELP, show_default=False)],
    as_json: terminal.AsJson = False,
) -> None:
    """Say what watching makes of a script's events, without the script."""
    log = read_event_log(file)
    training = find_training(log)
    replayed = None if training is None else Replayed.of(log, training)
    if as_json:
        terminal.print_json(NOTHING if replayed is None else replayed.as_object())
    elif replayed is None:
        terminal.show(NO_TRAINING)
    else:
        terminal.show(*replayed.lines())


@dataclass(frozen=True)
class Replayed:
    """What the events of a script show."""

    log: EventLog
    training: Training
    loop: Steps
    columns: Series
    divided: DividedCompute | None
    """What the compute of a steady step is made of; None where that is known of no step."""
    verdict: Verdict | None
    """None where not all that the script did is in the log."""

    @classmethod
    def of(cls, log: EventLog, training: Training) -> Replayed:
        loop = find_steps(training)
        figures = StepFigures(WARMUP_STEPS)
        figures.add_events(log.events)
        block = figures.take(training.thread, loop.steps, finished=True)
        columns = columns_of(
            block.steps,
            optimizers_step=training.update is Kind.STEPPED,
            device=block.device,
            ranks=block.ranks,
        )
        telemetry = dict.fromkeys(TELEMETRY_COLUMNS, np.zeros(0))
        totals = RunTotals(partial(loader_facts, log.descriptions))
        totals.add(loop.steps, training)
        facts: dict[str, Any] = {
            "device": _device_name(log, figures.device.marks.device),
            "watched": loader_facts(log.descriptions, main_loader(loop.steps) or 0),
            **loop_facts(training, totals, log.descriptions, finished=True),
            **figures.facts(),
        }
        verdict = None
        if not log.why_incomplete:
            config = with_loader(own_config("replay"), facts)
            verdict = judge(config, columns, [], telemetry, facts)
        divided = divide_compute(columns, steady.steady_state(columns))
        return cls(log, training, loop, columns, divided, verdict)

    def lines(self) -> list[str]:
        """Returns the lines for people."""
        n_steps = len(self.loop.steps)
        epochs = len({step.epoch for step in self.loop.steps})
        wait_s = float(np.nansum(self.columns["data_wait_s"]))
        lines = [
            f"{n_steps:,} steps in {formats.count(epochs, 'epoch')}, {formats.seconds(wait_s)} of waits for batches",
            *(_fed_by_words(name, n) for name, n in self._fed_by_names().items()),
        ]
        if not self.training.feeding:
            lines.append("fed by what was not seen")
        if self.loop.evaluations:
            took_s = sum(each.end_s - each.begin_s for each in self.loop.evaluations)
            n = formats.count(len(self.loop.evaluations), "evaluation")
            lines.append(f"{n}, {formats.seconds(took_s)}")
        if self.training.others:
            lines.append("several threads train: the steps are those of one of them")
        if self.divided is not None:
            lines.append(divided_in_words(self.divided))
        if self.verdict is None:
            return [f"no verdict: {self.log.why_incomplete}, so not all is in the file", *lines]
        return [*lines, self.verdict.sentence]

    def _fed_by_names(self) -> Counter[str]:
        """Returns what feeds the training, and how often: each batch may have a future of its own."""
        return Counter(_named(facts) for facts in _fed_by(self.log, self.training))

    def as_object(self) -> dict[str, Any]:
        """Returns the same as one JSON object (`cli.schema.Replayed`)."""
        divided = None if self.divided is None else dataclasses.asdict(self.divided)
        verdict = None
        if self.verdict is not None:
            verdict = {"kind": self.verdict.kind, "sentence": self.verdict.sentence}
        return {
            "steps": len(self.loop.steps),
            "epochs": len({step.epoch for step in self.loop.steps}),
            "samples": float(np.sum(self.columns["samples"])),
            "data_wait_s": float(np.nansum(self.columns["data_wait_s"])),
            "unknown_waits": sum(not step.wait_is_known for step in self.loop.steps),
            "evaluations": [dataclasses.asdict(each) for each in self.loop.evaluations],
            "fed_by": _fed_by(self.log, self.training),
            "several_threads_train": bool(self.training.others),
            "divided_compute": divided,
            "verdict": verdict,
        }


def _device_name(log: EventLog, number: int | None) -> str:
    """Returns the name of the device with this number; of None, that of the CPU."""
    described = None if number is None else log.descriptions.get(number)
    return "cpu" if described is None else str(described.facts.get("name"))


def _fed_by(log: EventLog, training: Training) -> list[dict[str, Any]]:
    """Returns the facts of the loaders that feed the training."""
    return [log.descriptions[number].facts for number in sorted(training.feeding)]


def _fed_by_words(name: str, n: int) -> str:
    return f"fed by {name}" if n == 1 else f"fed by {name}, {n:,} of them"


def _named(facts: dict[str, Any]) -> str:
    dataset = facts.get("dataset")
    if dataset is None:
        return str(facts.get("class_name"))
    return f"{dataset} (batches of {facts.get('batch_size')}, {facts.get('num_workers')} workers)"
