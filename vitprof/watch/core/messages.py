"""What the recorder of a run is told of a watched training: its environment, its steps, the evaluations
between them, and facts.

Like all of the core it is a function of the events: the same log gives the same messages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

from vitprof.measure.step_columns import Columns
from vitprof.measure.wire import Message, Note
from vitprof.watch.core.causal_blocks import CausalBlocks, why_refused
from vitprof.watch.core.columns import WARMUP_STEPS, columns_of
from vitprof.watch.core.compute_parts import ComputeParts
from vitprof.watch.core.late_batches import late_batches, worker_processes
from vitprof.watch.core.live import LiveSteps
from vitprof.watch.core.loop import Step
from vitprof.watch.core.replay_blocks import SEVERAL_LOADERS, ReplayBlocks, asks_several
from vitprof.watch.core.slow_samples import SlowSamples
from vitprof.watch.core.stages import stage_facts
from vitprof.watch.core.step_figures import StepBlock, StepFigures
from vitprof.watch.core.tracked import tracked
from vitprof.watch.core.training import Training
from vitprof.watch.events import COLUMNS, FORKED, Description, Kind, Row

AT_S = COLUMNS.index("at_s")
NEARLY_ALL_FRAC = 0.9
"""Share of the steps that have batches of a loader whose epochs are those of the training."""
FEW_UPDATES = 4
"""More updates than that on the only batch of a script are training on one batch."""
DEVICE_COLUMNS = (
    *("h2d_s", "compute_start_s", "compute_s", "gap_s", "exposed_wait_s", "h2d_start_s"),
    *ComputeParts._fields,
)
"""What is not known of a device that is not timed."""
OF_THE_RUN = ("pid", "world_size", "rank", "local_rank", "job", "began_unix_s")
"""What a run keeps of what its process says of itself."""
OF_A_RUN = {float(kind) for kind in (Kind.PAUSED, Kind.FINISHED)}
"""Kinds of events that are of no thread's timeline."""
LEAST_ITERATIONS = 3
"""So many tell how many batches an iterator gives."""
SOURCE = "source"
"""The kind of a described queue, pool or future."""
ITERATOR = "iterator"
"""The kind of the description of an iteration over a loader, with the workers that were started for it."""
OF_HANDING_OVER = ("batch", "worker", "pickled", "unpickled", ITERATOR)
"""The kinds of what is known of a loader's hand-over: what its batches are made of, what a worker says of itself, what
it takes to pickle a batch and to unpickle it, and how workers were started."""


@dataclass
class LoaderWaits:
    """The batches of one loader, and of those that took its place: many scripts make their loaders anew for
    each epoch."""

    facts: Mapping[str, Any]
    steps: int = 0
    """Steps that have batches of it."""
    batches: int = 0
    iterations: int = 0
    """Those that were begun, and gave a batch."""
    wait_s: float = 0.0


@dataclass
class RunTotals:
    """What is counted over the steps of a run."""

    facts_of: Callable[[int], Mapping[str, Any]]
    """Returns what is known of a loader, by its number."""
    n: int = 0
    """Steps so far."""
    unknown_waits: int = 0
    """Steps after the warm-up whose waits are not known."""
    asks_several: bool = False
    """Whether a step after the warm-up asked several loaders."""
    waits: list[LoaderWaits] = field(default_factory=list)
    """Of the steps after the warm-up."""
    waits_of: dict[int, LoaderWaits] = field(default_factory=dict)
    """The same by the number of the loader: several where one took the place of another."""
    updates: int = 0
    """Updates of the first step."""
    loaders: set[int] = field(default_factory=set)
    """The loaders of all batches."""
    slow_samples: SlowSamples = field(default_factory=SlowSamples)
    """Of the steps after the warm-up."""

    def add(self, steps: Iterable[Step], training: Training) -> None:
        for step in steps:
            if self.n == 0:
                self.updates = sum(training.is_update(work) for work in step.work)
            self.loaders |= {fetch.loader for fetch in step.fetches}
            self.loaders |= {inner.loader for fetch in step.fetches for inner in fetch.inside}
            if self.n >= WARMUP_STEPS:
                self._add_steady(step)
                self.slow_samples.add(self.n, step)
            self.n += 1

    def _add_steady(self, step: Step) -> None:
        self.unknown_waits += not step.wait_is_known
        loaders = step.loaders
        self.asks_several |= len(loaders) > 1
        for loader in loaders:
            if loader not in self.waits_of:
                self.waits_of[loader] = self._place_of(loader, loaders)
            self.waits_of[loader].steps += 1
        for fetch in step.fetches:
            waits = self.waits_of.get(fetch.loader)
            if waits is not None:
                waits.batches += not fetch.exhausted
                waits.iterations += fetch.first and not fetch.exhausted
                waits.wait_s += fetch.wait_s

    def epoch_steps(self, loader: int) -> float | None:
        """Returns the steps of an epoch of a loader; None where its length is not known, or many steps have no batch of
        it. A step may have several: gradients are accumulated over those that were fetched at once."""
        waits = self.waits_of.get(loader)
        n_steady = self.n - WARMUP_STEPS
        if waits is None or waits.steps < NEARLY_ALL_FRAC * n_steady:
            return None
        epoch_batches = waits.facts.get("epoch_batches")
        return float(epoch_batches * waits.steps / waits.batches) if epoch_batches else None

    def batches_of_an_iterator(self) -> float:
        """Returns how many batches an iterator of the loader that is waited for longest gives; infinity where few
        were begun."""
        longest = max(self.waits, key=lambda waits: waits.wait_s, default=None)
        if longest is None or longest.iterations < LEAST_ITERATIONS:
            return math.inf
        return longest.batches / longest.iterations

    def _place_of(self, loader: int, in_step: Iterable[int]) -> LoaderWaits:
        """Returns what is counted of a loader that is new: it takes the place of one with the same facts, if
        that is none of those in its step."""
        facts = self.facts_of(loader)
        in_use = [self.waits_of[other] for other in in_step if other in self.waits_of]
        for waits in self.waits:
            if waits.facts == facts and not any(waits is other for other in in_use):
                return waits
        waits = LoaderWaits(facts)
        self.waits.append(waits)
        return waits


class RunMessages:
    """The messages of one process, as its events arrive."""

    def __init__(self, process: Mapping[str, Any]) -> None:
        """`process`: what the process says of itself as it connects."""
        self._process = process
        self._live = LiveSteps()
        self._live.add([Description(0, "process", dict(process))], [])
        self._descriptions: dict[int, Description] = {}
        self._devices = set[int]()
        """The numbers of the devices of losses, and of what optimizers update, before it begins."""
        self._begun = False
        """Whether the environment was told."""
        self._finished = False
        """Whether the process has said that it ends."""
        self._main_loader = 0
        """The number of the loader that trains; 0 before that is known."""
        self._closed = False
        self._last: Step | None = None
        self._totals = RunTotals(self._loader_facts)
        self._n_steps = 0
        """The steps of the run so far."""
        self._figures = StepFigures(WARMUP_STEPS)
        self._blocks = ReplayBlocks() if process.get("headroom") else None
        self._causal = CausalBlocks() if process.get("causal") else None
        self._said_loader = False
        """Whether the process was told which loader trains."""
        self._is_looked_at = "pending" in process
        """Whether the process lets others know that it waits for a batch."""
        self._sent_facts: dict[str, Any] = {}
        """The facts that were told last."""
        self._workers_of: dict[int, list[int]] = {}
        """By loader, that of the last iterator with workers at the end: the ids of their processes."""
        self._sent_workers: list[int] = []
        """Those that were told last."""

    def add(self, descriptions: Iterable[Description], rows: Sequence[Row]) -> list[Message]:
        """Adds what has arrived; returns what is certain of a run that was over for now."""
        descriptions = list(descriptions)
        self._descriptions |= {described.number: described for described in descriptions}
        for described in descriptions:
            self._add_workers(described)
        self._live.add(descriptions, [])
        messages: list[Message] = []
        begun = 0
        workers = worker_processes(descriptions)
        if workers and self._is_looked_at:
            messages.append(Note("workers_begun", {"pids": workers}))
        if OF_A_RUN & {row[0] for row in rows}:
            for n, row in enumerate(rows, 1):
                if row[0] == Kind.PAUSED:
                    self._add(rows[begun:n])
                    messages += self._paused(self._descriptions[int(row[3])].facts)
                    begun = n
                elif row[0] == Kind.FINISHED:
                    self._finished = True
        self._add(rows[begun:])
        return messages

    def _add_workers(self, described: Description) -> None:
        """Notes the workers of an iterator."""
        pids = described.facts.get("pids") if described.kind == ITERATOR else None
        if pids:
            loader = described.facts["loader"]
            self._workers_of.pop(loader, None)
            self._workers_of[loader] = pids

    def _workers(self) -> list[int]:
        """Returns the workers of the loader that trains, or of the last one that took its place, as in a script
        that makes its loader anew for each epoch; [] where none are known."""
        facts = self._loader_facts(self._main_loader)
        for loader, pids in reversed(self._workers_of.items()):
            feeds = loader == self._main_loader or loader in self._totals.loaders
            if feeds and self._loader_facts(loader) == facts:
                return pids
        return []

    def _add(self, rows: Sequence[Row]) -> None:
        self._live.add([], rows)
        self._figures.add_rows(rows)
        if not self._begun:
            self._devices |= {int(row[4]) for row in rows if row[0] == Kind.STEPPED and row[4] > 0}
            self._devices |= {int(row[5]) for row in rows if row[0] == Kind.BACKWARD and row[5] > 0}

    def _paused(self, how: Mapping[str, Any]) -> list[Message]:
        """Returns what is left of a run that is over for now."""
        messages = self._messages(math.inf, finished=True)
        if not self._begun:
            return []
        self._begun = False
        return [*messages, Note("end", {"status": how["status"], "error": how["error"]})]

    def settle(self, now_s: float) -> list[Message]:
        """Returns what is certain by now and was not told before. `now_s`: on the clock of the events."""
        return self._messages(now_s, finished=False)

    def answer(self, question: Note) -> Note:
        """Returns the answer to the question how many steps have ended in a thread of the process."""
        training = self._live.training
        trains = training is not None and training.thread == question.values["thread"]
        if not trains:
            return _answer({"answer": question.kind, "ended": 0, "loader": 0})
        unsettled = self._live.unsettled()
        ended = self._live.n_given + len(unsettled)
        loader = self._main_loader or main_loader(unsettled) or 0
        return _answer({"answer": question.kind, "ended": ended, "loader": loader})

    def close(self) -> list[Message]:
        """Returns what is left as nothing more will come; last of all, whether the process ended by
        itself. Nothing when called again."""
        if self._closed:
            return []
        self._closed = True
        messages = self._messages(math.inf, finished=True)
        if self._begun and self._finished:
            messages.append(Note("end", {"status": "done", "error": ""}))
        return messages

    def _messages(self, now_s: float, *, finished: bool) -> list[Message]:
        new = self._live.settle(now_s, finished=finished)
        training = self._live.training
        if training is None:
            return []
        block = self._figures.take(training.thread, new.steps, finished=finished)
        if not (block.steps or self._begun):
            return []
        messages: list[Message] = []
        if not self._begun:
            self._begun = True
            messages.append(Note("environment", self._environment(block.steps)))
            messages.append(Note("stage", {"name": "training", "fraction": 0.0, "message": ""}))
            if self._is_looked_at:
                values = {"pid": self._process["pid"], "descriptor": self._process["pending"]}
                messages.append(Note("looked_at", values))
        if block.steps:
            messages += self._steps(block, training)
        for evaluation in new.evaluations:
            times = {"t_start_s": evaluation.begin_s, "t_end_s": evaluation.end_s}
            messages.append(Note("phase", {"name": "evaluate", **times}))
        workers = self._workers()
        if workers != self._sent_workers:
            self._sent_workers = workers
            messages.append(Note("workers", {"pids": workers}))
        facts = self._facts(training, finished=finished)
        changed = {name: fact for name, fact in facts.items() if self._sent_facts.get(name) != fact}
        if changed:
            self._sent_facts |= changed
            messages.append(Note("facts", changed))
        return messages

    def _steps(self, block: StepBlock, training: Training) -> list[Message]:
        """Returns what is told of some steps."""
        messages: list[Message] = []
        columns = self._columns(block, training)
        if self._blocks is not None:
            messages += self._replayed(self._blocks, block.steps)
            columns, phases = self._blocks.add(block.steps, columns)
            messages += phases
        if self._causal is not None:
            messages += self._begun_causal(self._causal, block.steps)
            columns, phases = self._causal.apart.add(block.steps, columns)
            messages += phases
        messages.append(columns)
        figures = tracked(columns) if self._process.get("tracks") else {}
        if figures:
            messages.append(_answer({"tracked": figures, "thread": training.thread}))
        if self._is_looked_at and self._blocks is None:
            messages += self._late(block.steps)
        self._totals.add(block.steps, training)
        self._n_steps += len(columns["step"])
        self._last = block.steps[-1]
        return messages

    def _late(self, steps: Sequence[Step]) -> list[Message]:
        """Returns what is told of batches that came late in some steps."""
        n_warmup = max(0, WARMUP_STEPS - self._totals.n)
        late = late_batches(self._totals.n + n_warmup, steps[n_warmup:], self._descriptions)
        return [Note("late", {"batches": late})] if late else []

    def _columns(self, block: StepBlock, training: Training) -> Columns:
        columns = columns_of(
            block.steps,
            self._last,
            self._n_steps,
            optimizers_step=training.update is Kind.STEPPED,
            device=block.device,
            ranks=block.ranks,
        )
        if "untimed_device" not in self._device_facts():
            return columns
        unknown = np.full(len(block.steps), np.nan)
        return {**columns, **dict.fromkeys(DEVICE_COLUMNS, unknown)}

    def _replayed(self, blocks: ReplayBlocks, steps: Sequence[Step]) -> list[Message]:
        """Returns what the process is to be told where it serves kept batches: which loader trains, or
        that no step can have them."""
        if asks_several(steps) and not blocks.refused:
            blocks.refused = SEVERAL_LOADERS
            return [_answer({"headroom": 0, "refused": SEVERAL_LOADERS})]
        loader = main_loader(steps)
        if self._said_loader or loader is None or blocks.refused:
            return []
        self._said_loader = True
        return [_answer({"headroom": loader, "facts": dict(self._loader_facts(loader))})]

    def _begun_causal(self, causal: CausalBlocks, steps: Sequence[Step]) -> list[Message]:
        """Returns what the process is to be told where stages seem faster: which loader trains, or why none
        can."""
        loader = main_loader(steps)
        if causal.is_answered or loader is None:
            return []
        facts = self._loader_facts(loader)
        device = str(self._device_facts()["device"])
        why = why_refused(steps, self._process, device, facts)
        return [_answer(causal.answer(loader, facts, why))]

    def _environment(self, steps: Sequence[Step]) -> dict[str, Any]:
        """Returns what the training runs on, and the facts of its loader."""
        self._main_loader = main_loader(steps) or 0
        watched = dict(self._loader_facts(self._main_loader))
        inside = {
            fetch.loader for step in steps for outer in step.fetches for fetch in outer.inside
        }
        if len(inside) == 1:  # of a loader around a DataLoader, that one knows more
            watched |= self._loader_facts(inside.pop())
        watched.pop("declared", None)
        if "name" not in watched:
            watched |= self._name_of_the_run()
        if watched.get("batch_size") is None:
            watched["batch_size"] = next((int(s.samples) for s in steps if s.samples), None)
        process = {name: fact for name, fact in self._process.items() if name in OF_THE_RUN}
        return {**process, **self._device_facts(), "watched": watched}

    def _name_of_the_run(self) -> dict[str, str]:
        """Returns the name that a script gave to its run where the steps had no batch of the loader that it
        named; {} where it gave none.
        """
        loaders = (d.facts for d in self._descriptions.values() if d.kind == "loader")
        names = [facts["name"] for facts in loaders if facts.get("declared")]
        return {"name": names[0]} if names else {}

    def _device_facts(self) -> dict[str, Any]:
        """Returns the environment of the device that computes: an accelerator, where there is one.

        Optimizers that are offloaded have their parameters on the CPU, and the losses are not there.
        """
        devices = [d for d in self._descriptions.values() if d.kind == "device"]
        known = [d.facts for d in devices if not self._devices or d.number in self._devices]
        known.sort(key=lambda facts: facts["name"] == "cpu")
        if not known:
            return {"device": "cpu"}
        return dict(known[0].get("environment", {"device": known[0]["name"]}))

    def _loader_facts(self, loader: int) -> Mapping[str, Any]:
        return loader_facts(self._descriptions, loader)

    def _facts(self, training: Training, *, finished: bool) -> dict[str, Any]:
        facts = loop_facts(training, self._totals, self._descriptions, finished=finished)
        if self._live.several_at_once & self._totals.loaders:
            facts["iterators_at_once"] = True
        epoch_steps = self._totals.epoch_steps(self._main_loader or 0)
        if epoch_steps is not None:
            facts["epoch_steps"] = epoch_steps
        facts |= handed_over(self._descriptions.values(), self._main_loader)
        facts |= self._figures.facts()
        if self._blocks is not None:
            facts.pop("slow_samples", None)  # steps on kept batches have no number in the recording
            headrooms = [d.facts for d in self._descriptions.values() if d.kind == "headroom"]
            facts |= self._blocks.facts(headrooms[-1]["refused"] if headrooms else "")
        if self._causal is not None:
            # steps in which a stage seems faster have no number in the recording, and pauses are none of the script's
            facts.pop("slow_samples", None)
            facts.pop("between_steps_frac", None)
            facts |= self._causal.facts(self._descriptions.values(), finished=finished)
        if self._live.why_incomplete:
            facts["partly_watched"] = self._live.why_incomplete
        return facts


def loader_facts(descriptions: Mapping[int, Description], loader: int) -> Mapping[str, Any]:
    """Returns what is known of a loader; of none, or of a queue, what is known of any."""
    described = descriptions.get(loader)
    if described is None or described.kind != "loader":
        return {"dataset": None, "batch_size": None, "num_workers": 0, "pin_memory": False}
    return described.facts


def handed_over(descriptions: Iterable[Description], loader: int) -> dict[str, Any]:
    """Returns the fact "handed_over" on the batches of a loader: what each is made of, where that is known, and
    what is known of how its workers hand them over."""
    facts: dict[str, Any] = {}
    for described in descriptions:
        if described.kind in OF_HANDING_OVER and described.facts.get("loader") == loader:
            facts |= described.facts
    if "tensors" not in facts:
        return {}
    named = {name: fact for name, fact in facts.items() if name not in ("loader", "pids")}
    return {"handed_over": named}


def loop_facts(
    training: Training,
    totals: RunTotals,
    descriptions: Mapping[int, Description],
    *,
    finished: bool,
) -> dict[str, Any]:
    """Returns the facts of a run that follow from its loop: what feeds it, and what is not known.

    `finished`: no step is to come.
    """
    facts: dict[str, Any] = {}
    if training.others:
        facts["several_threads_train"] = True
    if any(described.kind == FORKED for described in descriptions.values()):
        facts["forked_process_trains"] = True
    if totals.unknown_waits:
        kinds = {descriptions[n].kind for n in training.feeding if n in descriptions}
        facts["unknown_wait_steps"] = totals.unknown_waits
        facts["fetched_by"] = "a thread" if SOURCE in kinds else "no loader"
    if totals.asks_several:
        facts["unclear_loaders_steps"] = 0
        facts["loaders"] = [
            {**waits.facts, "batches": waits.batches, "wait_s": waits.wait_s}
            for waits in totals.waits
        ]
    batches = totals.batches_of_an_iterator()
    if math.isfinite(batches):
        facts["batches_of_an_iterator"] = batches
    if finished and totals.n == 1 and totals.updates > FEW_UPDATES:
        facts["updates_on_one_batch"] = totals.updates
    if totals.loaders:
        facts |= stage_facts(descriptions.values(), totals.loaders)
        described = descriptions.values()
        facts |= totals.slow_samples.facts(described, totals.loaders, finished=finished)
    return facts


def main_loader(steps: Iterable[Step]) -> int | None:
    """Returns the loader whose batches most of the steps waited for; None where no batch was seen."""
    batches: Counter[int] = Counter()
    for step in steps:
        batches.update({fetch.loader for fetch in step.fetches if not fetch.exhausted})
    return batches.most_common(1)[0][0] if batches else None


def _answer(values: dict[str, Any]) -> Note:
    return Note("answer", values)


def is_answer(message: Message) -> TypeGuard[Note]:
    """Returns whether a message is for the process itself."""
    return isinstance(message, Note) and message.kind == "answer"


def of_process(process: Mapping[str, Any], messages: Iterable[Message]) -> Iterator[Message]:
    """Yields what a run is told of a process, as its `messages` arrive: descriptions, events by column,
    and the time."""
    run = RunMessages(process)
    descriptions = list[Description]()
    now_s = -math.inf
    for message in messages:
        rows = list[Row]()
        if not isinstance(message, Note):
            columns = [message[name].tolist() for name in COLUMNS]
            rows = list(zip(*columns, strict=True))
            now_s = max(now_s, *columns[AT_S])
        elif message.kind == "described":
            descriptions.append(Description(**message.values))
            continue
        elif message.kind == "clock":
            now_s = message.values["now_s"]
        yield from run.add(descriptions, rows)
        descriptions.clear()
        if isinstance(message, Note) and message.kind == "close":
            yield from run.close()
            yield _answer({"answer": message.kind})
            continue
        yield from run.settle(now_s)
        if isinstance(message, Note) and message.kind == "steps":
            yield run.answer(message)
    # The last ones may have no event: that of a hook which failed ends them.
    yield from run.add(descriptions, ())
    yield from run.close()
