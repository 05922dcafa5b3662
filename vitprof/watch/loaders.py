"""The loaders that a script has iterated over, what is known about each, and which one trains, in which thread."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from vitprof.watch import frameworks
from vitprof.watch.patches.autograd import is_in_memory, parameters_of
from vitprof.watch.patching import modules_in_stack
from vitprof.watch.preparation import compiled
from vitprof.watch.script_objects import (
    ByIdentity,
    attribute,
    is_true,
    length,
    name_of,
    whole_number,
)
from vitprof.watch.trial import made_of

if TYPE_CHECKING:
    from vitprof.watch.loop import Loop


DATA = "VITPROF_WATCH_DATA"
"""Environment variable: a file for what the train loader's dataset is, in a script that ends after some steps."""
CONVERT = "VITPROF_WATCH_CONVERT"
"""Environment variable: samples are stored in other forms instead, as this JSON object says."""
STEPS_WITHOUT_LOADER = 3
"""After so many steps of optimizers without a request for a batch the script is taken for one without DataLoader."""


class Begun(NamedTuple):
    """When `iter(loader)` was called, had returned, and the script could go on after vitprof's own work: (s)."""

    since_s: float
    until_s: float
    told_s: float


UNKNOWN = Begun(math.nan, math.nan, math.nan)


class Seen:
    """A DataLoader, or a watched loader of another kind, that was iterated over."""

    def __init__(
        self, facts: dict[str, Any], *, declared: bool = False, each_is_a_step: bool = False
    ) -> None:
        """`facts`: `loader_facts`; `declared`: the script says that it trains; `each_is_a_step`: each batch."""
        self.facts, self.declared, self.each_is_a_step = facts, declared, each_is_a_step
        self.trains = True
        """Whether its batches count for steps that ask another loader too: not where the script declares others."""
        self.updates = False
        """Whether an optimizer has stepped as this was the train loader."""
        self.trains_quietly = False
        """Whether the optimizer steps on batches of it that were requested without gradients."""
        self.is_over = False
        """Whether its last iteration has ended."""
        self.begun = UNKNOWN
        """The beginning of its last iteration, until its first batch is requested."""
        self.alive: tuple[weakref.ref[Any], ...] = ()
        """References to the loader and to its last iterator."""

    @property
    def iterator(self) -> Any:
        """Returns its last iterator; None if that is gone, or none was begun."""
        return self.alive[-1]() if self.alive else None

    @property
    def is_alive(self) -> bool:
        """Returns whether it can still return a batch: the loader or its last iterator exists."""
        return any(ref() is not None for ref in self.alive)


class QuietRequests:
    """Requests for batches without gradients: of a validation, now and then, or of training, before each step."""

    def __init__(self) -> None:
        self.last: tuple[Seen | None, int] = None, 0
        """The loader of the last one since a request with gradients or a step of the optimizer, and the thread."""
        self._n = 0
        """Steps of the optimizer in a row that came after such a request."""
        self._listens = False  # to the next call of a model

    def request(self, seen: Seen | None) -> None:
        """Notes a request, None: with gradients. One whose batch a model gets without them is of a validation."""
        self.last = seen, threading.get_ident()
        if seen is None or self._listens or not 0 < self._n < STEPS_WITHOUT_LOADER or compiled():
            return
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook

        def called(module: Any, _: Any) -> None:
            with contextlib.suppress(Exception):  # the script would get it
                if (
                    threading.get_ident() == self.last[1]
                    and next(module.parameters(), None) is not None
                ):
                    hook.remove()
                    self._listens = False
                    if not torch.is_grad_enabled():
                        self.last = None, 0

        hook, self._listens = register_module_forward_pre_hook(called), True

    def step(self) -> bool:
        """Notes a step of the optimizer; returns whether the loader is one that trains: used in step after step."""
        (seen, thread), self.last = self.last, (None, 0)
        self._n = self._n + 1 if seen is not None and thread == threading.get_ident() else 0
        if seen is not None:
            seen.trains_quietly |= self._n >= STEPS_WITHOUT_LOADER
        return self._n >= STEPS_WITHOUT_LOADER


class Loaders:
    """The loaders of a script, by the loader or by its iterator: all that is left of one made in a `for` statement."""

    def __init__(self) -> None:
        self._seen = ByIdentity[Seen]()
        self._declared: list[weakref.ref[Any]] = []
        """The loaders that the script declares, and their data sets."""
        self.declares = False
        """Whether the script says which loader trains; then no other one counts."""
        self._job: Any = None
        self.ours: Seen | None = None
        """The train loader, or the candidate for it."""
        self.trainer = 0
        """The thread that trains: it has requested a batch and then stepped an optimizer. 0 where none is known."""
        self.several_train = False
        self._requested: dict[int, tuple[Seen | None, int]] = {}
        """Thread -> the loader of its last request, and the `id` of the first optimizer that has stepped since."""
        self._n_again = self._most_again = 0.0
        """How often that one has stepped again since, and the most so far."""
        self.without_gradients = QuietRequests()
        self._optimizer: weakref.ref[Any] | None = None
        self.fetched_apart: Seen | None = None
        self._apart: set[int] = set()
        """The threads whose last request was that of a loop apart."""

    def declare(self, loader: Any, facts: dict[str, Any] | None = None) -> None:
        """Records that `loader`, or one of the same data set, trains; `facts` of one that is no DataLoader."""
        self.declares = True
        for each in (loader, attribute(loader, "dataset")):
            with contextlib.suppress(TypeError):  # a list, or None
                self._declared.append(weakref.ref(each))
        if facts is not None:
            self._seen[loader] = Seen(facts, declared=True, each_is_a_step=True)

    def add(self, source: Any, facts: dict[str, Any]) -> Seen:
        """Records what gives batches and is no loader; returns it as one."""
        seen = self._seen[source] = Seen(facts, declared=self.declares)
        seen.alive = (weakref.ref(source),)
        return seen

    def of(self, loader_or_iterator: Any) -> Seen | None:
        """Returns what is known about a loader, given itself or its iterator; None if it was not iterated over."""
        return self._seen.get(loader_or_iterator)

    def begun_since_s(self, since_s: float) -> float:
        """Returns the time in which loaders were begun since then whose first batch is not requested yet."""
        if math.isnan(since_s):
            return 0.0
        begun = {seen.begun for seen in self._seen.values() if seen.begun.since_s >= since_s}
        return sum(begin.told_s - begin.since_s for begin in begun)

    def is_ours(self, loader_or_iterator: Any) -> bool:
        """Returns whether this is the train loader, or an iterator of it."""
        ours = self.ours
        return ours is not None and (
            ours.iterator is loader_or_iterator or self.of(loader_or_iterator) is ours
        )

    def is_apart(self, loader_or_iterator: Any) -> bool:
        """Returns whether this thread iterates apart from the one that trains: another one, in its own iteration."""
        ours, thread = self.ours, threading.get_ident()
        self._apart.discard(thread)
        if (
            ours is None
            or self.trainer in (0, thread)
            or not ours.is_alive
            or ours.iterator is loader_or_iterator
        ):
            return False
        if ours.is_over and self.of(loader_or_iterator) is ours:  # the next epoch
            return False
        if any(each.ident == self.trainer for each in threading.enumerate()):
            self._apart.add(thread)
            self.fetched_apart = self.of(loader_or_iterator)
        return self.in_thread_apart

    @property
    def in_thread_apart(self) -> bool:
        """Returns whether this thread's last request was that of a loop apart."""
        return threading.get_ident() in self._apart

    def request(self, iterator: Any, *, in_loop: bool) -> Seen | None:
        """Notes a request of this thread, if it is one `in_loop`; returns the loader of `iterator`."""
        seen = self.of(iterator)
        self.without_gradients.request(None if in_loop or self.declares else seen)
        if in_loop:
            thread = threading.get_ident()
            if thread not in self._requested:
                self._forget_threads()
            self._requested[thread] = seen, 0
            self._n_again, self._most_again = 0, max(self._n_again, self._most_again)
        return seen

    def _forget_threads(self) -> None:
        """Forgets the threads that have ended: another one may get the number of one of them."""
        alive = {each.ident for each in threading.enumerate()}
        self._requested = {
            thread: last for thread, last in self._requested.items() if thread in alive
        }
        self._apart = {thread for thread in self._apart if thread in alive}

    def is_main(self, optimizer: Any) -> bool:
        """Returns whether it is the first that has stepped of those that still exist."""
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        return self._optimizer() is optimizer

    def step(self, optimizer: Any, thread: int) -> Seen | None:
        """Notes its step in `thread`; returns the loader of the thread's last request, None if stepped since."""
        seen, stepped = self._requested.get(thread, (None, 0))
        self._requested[thread] = seen, stepped or id(optimizer)
        self._n_again += (again := stepped == id(optimizer))
        return None if again else seen

    def goes_on_without_ours(self, *, settled: bool) -> bool:
        """Returns whether the script trains on without the train loader: no batch can come of its iteration, and an
        optimizer has stepped more often than on any batch of it. `settled`: whether there were batches enough.
        """
        ours = self.ours
        over = ours is None or ours.is_over or (settled and ours.iterator is None)
        goes_on = (
            over
            and not self.declares
            and self._n_again >= max(STEPS_WITHOUT_LOADER, 2 * self._most_again)
        )
        self._n_again = -math.inf if goes_on else self._n_again  # until the next request
        return goes_on

    def let_go(self) -> None:
        """Releases the train loader, so that the next declared loader continues the run."""
        if self.ours is not None:
            self.ours.alive = ()

    def begins_another_job(self) -> bool:
        """Returns whether hydra runs another job in this process than at the last call, as with `--multirun`."""
        before = self._job
        with contextlib.suppress(
            Exception
        ):  # not imported, not used here, or without a number, as that of one job
            self._job = sys.modules["hydra.core.hydra_config"].HydraConfig.get().job.num
        return before not in (None, self._job)

    def begun(self, loader: Any, iterator: Any, facts: dict[str, Any] | None) -> Seen:
        """Records the beginning of an iteration; returns the record. `facts`: of a loader that is no DataLoader."""
        if self.is_apart(loader) and loader in self._seen:  # one that another thread iterates over
            seen = self._seen[iterator] = Seen(self._seen[loader].facts)
            seen.alive = (weakref.ref(iterator),)
            return seen
        if loader not in self._seen:
            facts = loader_facts(loader) if facts is None else facts
            loaders = (loader, attribute(loader, "dataset"))
            declared = any(
                ref() is each for ref in self._declared for each in loaders if each is not None
            )
            self._seen[loader] = Seen(facts, declared=declared)
        seen = self._seen[iterator] = self._seen[loader]
        seen.alive, seen.is_over = (weakref.ref(loader), weakref.ref(iterator)), False
        return seen


LEAST_PASSES = 3
"""Batches with a backward pass that show training, where no optimizer of PyTorch's steps."""
MOST_KEPT = 8
"""The most parameters of which the values are kept, to see whether they change."""


class BackwardPasses:
    """The backward passes on batches of a loader that may train: in training, parameters change between them."""

    def __init__(self) -> None:
        self._step: Any = None
        self._n, self._look_at = 0, LEAST_PASSES
        self._kept: list[tuple[Any, Any]] = []
        """Parameters that the first loss depends on, and their values then."""

    def train(self, loop: Loop, loss: Any) -> bool:
        """Returns whether this one, from `loss`, shows that the loop trains."""
        if loop.steps.confirmed or loop.step is self._step:
            return False
        self._step, self._n = loop.step, self._n + 1
        if self._n == 1:
            parameters = sorted(parameters_of(loss), key=lambda p: int(p.numel()))[:MOST_KEPT]
            self._kept = [(p, p.detach().clone()) for p in parameters if is_in_memory(p)]
        if self._n < self._look_at:
            return False
        self._look_at += self._n // 2  # gradients may be accumulated over many
        now = set(map(id, parameters_of(loss)))  # a batch of its own that was changed is none
        return any(
            id(p) in now and is_in_memory(p) and not p.detach().equal(before)
            for p, before in self._kept
        )


def describe_dataset(seen: Seen | None) -> None:
    """Writes what the dataset of a loader is, or what came of storing it, if that is asked for."""
    if not (path := os.environ.get(DATA)) or seen is None:
        return
    if request := os.environ.get(CONVERT):
        from vitprof.watch.conversion import report_stored

        report_stored(seen, path, request)
    else:
        from vitprof.watch.dataset import report

        report(seen, path)


def loader_facts(loader: Any) -> dict[str, Any]:
    """Returns the arguments of a DataLoader, and the names of its dataset, sampler and collate function; None for what
    one of a framework does not have, or fails to say.
    """

    def of(name: str) -> Any:
        return attribute(loader, name)

    dataset = of("dataset")
    batch_size = whole_number(of("batch_size"))
    if not batch_size:
        batch_size = whole_number(attribute(of("batch_sampler"), "batch_size"))
    if dataset is loader:  # fastai's, which stands in for the one that has them
        dataset = attribute(of("d"), "dataset")
        batch_size = whole_number(attribute(of("d"), "bs"))
    framework = frameworks.with_loader(modules_in_stack())
    return {
        "dataset": name_of(dataset),
        "n_samples": length(dataset),
        "batch_size": batch_size,
        "num_workers": whole_number(of("num_workers")) or 0,
        "prefetch_factor": whole_number(of("prefetch_factor")),
        **{name: is_true(of(name)) for name in ("pin_memory", "persistent_workers", "drop_last")},
        "start_method": _start_method(of("multiprocessing_context")),
        "collate": name_of(of("collate_fn")),
        "sampler": name_of(of("sampler")),
        **({"framework": framework} if framework else {}),
        **made_of(loader),
    }


def _start_method(context: Any) -> str | None:
    if context is None:
        return None
    try:
        return str(context.get_start_method())
    except Exception:  # a context of the script's own
        return None


def generic_facts(loader: Any) -> dict[str, Any]:
    """Returns some of the facts of `loader_facts` for a loader of any kind: its attributes with PyTorch's names."""

    dataset = attribute(loader, "dataset")
    described = loader if dataset is None else dataset
    return {
        "dataset": None if loader is None else type(described).__name__,
        "batch_size": whole_number(attribute(loader, "batch_size")),
        "num_workers": whole_number(attribute(loader, "num_workers")) or 0,
        "pin_memory": attribute(loader, "pin_memory") is True,
    }
