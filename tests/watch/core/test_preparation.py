"""What a script does with a batch before its model, and between its steps, in steps that were looked at,
at times that nobody measured.

A batch takes 10 ms, a backward pass and an update 1 ms each; a loop does 0.5 ms between batch and model.
"""

import math

import pytest

from tests.watch.core.written import CHECK, HELPER, MAIN, OTHER, TRAIN, Script
from tests.watch.core.written_device import DeviceScript
from vitprof.watch.core.device_columns import DeviceSteps
from vitprof.watch.core.loop import find_steps
from vitprof.watch.core.preparation import LEAST_SAMPLES, PreparedSteps
from vitprof.watch.core.training import find_training
from vitprof.watch.events import NAN, Kind

LITTLE_S = 0.0005
A_MOMENT_S = 1e-6


class LookedAt(Script):
    """A script whose steps are looked at. Its thread uses the core but where it sleeps."""

    cpu_s = 0.0
    taken = 0.0

    def look(self) -> None:
        self._add(Kind.LOOKED_AT, MAIN, 0, LITTLE_S)

    def prepare(self, seconds: float) -> None:
        self.now_s += seconds

    def call(self) -> None:
        self._add(Kind.MODEL_CALLED, MAIN, 0, self.cpu_s, self.taken)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.cpu_s -= seconds

    def update(self, optimizer: int = 11, thread: int = MAIN) -> None:
        super().update(optimizer, thread)
        if thread == MAIN:
            self._add(Kind.USED, MAIN, 0, self.now_s + self.cpu_s, self.taken)
        self.now_s += A_MOMENT_S

    def step(self, prepared_s: float = 0.0, asleep_s: float = 0.0) -> None:
        self.fetch(TRAIN)
        self.look()
        self.prepare(prepared_s)
        self._add(Kind.MODEL_CALLED, MAIN, 0, self.now_s + self.cpu_s, self.taken)
        self.sleep(asleep_s)
        self.backward()
        self.update()


class Reading(LookedAt):
    """A script whose model is no module, and which reads data itself after its batch has come."""

    read_bytes = 0.0
    queued_s = 0.0

    def spend(self) -> None:
        cpu_s = self.now_s + self.cpu_s
        self._add(Kind.SPENT, MAIN, 0, cpu_s, self.queued_s, self.read_bytes)

    def backward(self, thread: int = MAIN) -> None:
        """The hook of a backward pass notes both at the same time."""
        super().backward(thread)
        self.spend()

    def queue(self, seconds: float) -> None:
        """Others have the core meanwhile."""
        self.sleep(seconds)
        self.queued_s += seconds

    def read(self, n_bytes: float) -> None:
        self.read_bytes += n_bytes

    def look(self) -> None:
        super().look()
        self.spend()

    def step_with_an_iterator_of_its_own(self) -> None:
        """Between the batch and the model it makes an iterator with workers, fetches, and drops it."""
        self.fetch(TRAIN)
        self.look()
        self.spend()  # as an iteration begins
        self.begin(OTHER, seconds=0.030)
        self.cpu_s -= 0.030
        self.spend()
        self.fetch_made(OTHER, starts_s=0.020, worker=0.0)
        self.cpu_s -= 0.030
        self.spend()
        since_s = self.now_s
        self.sleep(0.040)
        iterator = self._iterators.pop((OTHER, MAIN))
        self._add(Kind.SHUT_DOWN, MAIN, iterator, since_s)
        self.spend()
        self.call()
        self.backward()
        self.update()

    def step(self, prepared_s: float = 0.0, asleep_s: float = 0.0, n_bytes: float = 0.0) -> None:
        self.fetch(TRAIN)
        self.look()
        self.read(n_bytes)
        self.prepare(prepared_s)
        self.sleep(asleep_s)
        self.backward()
        self.update()


class OnDevice(LookedAt, DeviceScript):
    """The same on a device that works on its own: for how long its thread sleeps says nothing."""

    taken = NAN


def facts(script: Script, warmup_steps: int = 0) -> dict[str, float]:
    if isinstance(script, DeviceScript):
        script.pass_marks()
    training = find_training(script.log)
    assert training is not None
    device = DeviceSteps(warmup_steps)
    device.add(script.log.events, find_steps(training).steps)
    steps, figures = device.take(training.thread, finished=True)
    prepared = PreparedSteps(warmup_steps)
    prepared.add(script.log.events)
    prepared.take(training.thread, steps, figures)
    return prepared.facts()


def test_what_a_script_does_before_its_model_is_a_share_of_the_steps() -> None:
    script = LookedAt()
    for _ in range(10):
        script.step(prepared_s=0.0045)
    # 4 ms more than a loop does anyway, of 16.5 ms
    assert facts(script)["outside_next_frac"] == pytest.approx(0.004 / 0.0165, abs=1e-3)
    assert facts(script)["between_steps_frac"] == 0.0
    assert facts(script)["asleep_frac"] == pytest.approx(0.0, abs=1e-9)


def test_what_it_does_between_two_steps_is_one_too() -> None:
    script = LookedAt()
    for _ in range(10):
        script.step()
        script.now_s += 0.0065
    # a step is over at the next request, so the pause is a part of it; the first has none before it, and
    # one of the others is left out
    share = facts(script)["between_steps_frac"]
    assert share == pytest.approx(8 * 0.006 / (9 * 0.0185), abs=1e-3)


def test_pauses_are_known_of_all_steps_and_not_of_those_that_were_looked_at() -> None:
    """As where a checkpoint follows each tenth step, and chance has looked at each of these."""
    script = LookedAt()
    for number in range(100):
        follows_a_pause = number % 10 == 0
        script.fetch(TRAIN)
        if follows_a_pause:
            script.look()
            script.call()
        script.backward()
        script.update()
        if number % 10 == 9:
            script.now_s += 0.1005
    share = facts(script)["between_steps_frac"]
    # the first step follows none, and one of the others is left out
    assert share == pytest.approx(8 * 0.100 / (99 * 0.012 + 8 * 0.1005), abs=0.01)


def test_what_it_does_between_two_epochs_is_no_work_on_a_batch() -> None:
    script = LookedAt()
    for _ in range(10):
        script.step()
        script.exhaust(TRAIN)
        script.now_s += 0.0065
    assert facts(script)["outside_next_frac"] == pytest.approx(0.0, abs=1e-9)
    # the pause is in no step; a step begins with the end of the iteration before, which takes 10 ms: the
    # first begins without one, and one of the others is left out
    share = facts(script)["between_steps_frac"]
    rounds_s = 0.012 + 0.0185 + 7 * 0.0285
    assert share == pytest.approx(8 * 0.006 / rounds_s, abs=1e-3)


def test_workers_that_end_where_a_loop_is_left_early_are_told_by_themselves() -> None:
    """Two workers that end after six batches each: the waits were 50%, and with that 72%."""
    script = LookedAt()
    for _ in range(10):
        script.step()
        script.leave(TRAIN, ends_s=0.040)
        script.now_s += 0.0065
    found = facts(script)
    rounds_s = 0.012 + 0.040 + 0.0065
    # the first step follows none, and one of the others is left out
    assert found["left_early_frac"] == pytest.approx(8 * 0.040 / (9 * rounds_s), abs=1e-3)
    assert found["between_steps_frac"] == pytest.approx(8 * 0.006 / (9 * rounds_s), abs=1e-3)


def test_workers_that_end_before_an_evaluation_are_no_part_of_training() -> None:
    script = LookedAt()
    for _ in range(10):
        script.step()
        script.leave(TRAIN, ends_s=0.040)
        script.fetch(CHECK, quiet=True)
        script.exhaust(CHECK)
    assert "left_early_frac" not in facts(script)


def test_a_thread_that_sleeps_between_model_and_optimizer_waits_for_something() -> None:
    script = LookedAt()
    for _ in range(10):
        script.step(asleep_s=0.008)
    assert facts(script)["asleep_frac"] == pytest.approx(0.008 / 0.020, abs=1e-3)


def test_sleep_is_not_known_where_others_took_a_core() -> None:
    script = LookedAt()
    for _ in range(10):
        script.fetch(TRAIN)
        script.look()
        script.call()
        script.taken += 1
        script.backward()
        script.update()
    assert facts(script).keys() == {"outside_next_frac", "between_steps_frac"}


def test_sleep_is_not_known_where_another_thread_steps() -> None:
    script = LookedAt()
    for _ in range(10):
        script.fetch(TRAIN)
        script.look()
        script.call()
        script.backward()
        script.update(thread=HELPER)
    assert facts(script).keys() == {"outside_next_frac", "between_steps_frac"}


def test_one_pause_is_no_habit() -> None:
    script = LookedAt()
    for number in range(10):
        script.step(prepared_s=1.0 if number == 4 else 0.0)
    assert facts(script)["outside_next_frac"] == 0.0


def test_few_steps_say_nothing() -> None:
    script = LookedAt()
    for _ in range(LEAST_SAMPLES - 1):
        script.step(prepared_s=0.010)
    assert facts(script) == {}


def test_the_warm_up_says_nothing() -> None:
    script = LookedAt()
    for number in range(14):
        script.step(prepared_s=0.100 if number < 5 else 0.0)
    assert facts(script, warmup_steps=5)["outside_next_frac"] == 0.0


def test_a_step_without_a_call_of_a_model_is_not_known() -> None:
    script = LookedAt()
    for _ in range(10):
        script.fetch(TRAIN)
        script.look()
        script.prepare(0.010)
        script.backward()
        script.update()
    assert facts(script) == {}


def test_two_batches_that_are_prepared_one_after_the_other_count_both() -> None:
    script = LookedAt()
    for _ in range(10):
        script.fetch(TRAIN)
        script.look()
        script.prepare(0.003)
        script.fetch(TRAIN)
        script.prepare(0.0025)
        script.call()
        script.backward()
        script.update()
    assert facts(script)["outside_next_frac"] == pytest.approx(0.005 / 0.0275, abs=1e-3)


def test_a_batch_that_is_prepared_anew_for_each_update_counts_each_time() -> None:
    script = LookedAt()
    for _ in range(10):
        script.fetch(TRAIN)
        script.look()
        for _ in range(2):
            script.prepare(0.003)
            script.call()
            script.backward()
            script.update()
    assert facts(script)["outside_next_frac"] == pytest.approx(0.0055 / 0.020, abs=1e-3)


def test_after_an_evaluation_nothing_is_between_steps() -> None:
    script = LookedAt()
    for _ in range(10):
        script.step()
        script.fetch(102, quiet=True)
        script.now_s += 0.050
    assert facts(script)["between_steps_frac"] == 0.0


def test_a_device_that_still_works_is_not_kept_waiting() -> None:
    """8 ms of work of which 6 are left at the request: they hide the wait, and as much of what follows."""
    script = OnDevice(wait_s=0.002)
    for _ in range(12):
        script.step(prepared_s=0.0065)
    # the device is free 4 ms after the batch came, so 2.5 ms are a wait, less what a loop does
    found = facts(script)
    assert found["outside_next_frac"] == pytest.approx(0.002 / 0.0105, abs=2e-3)
    assert "asleep_frac" not in found


def test_a_copy_of_the_batch_is_no_preparation() -> None:
    script = OnDevice()
    for _ in range(10):
        script.fetch(TRAIN)
        script.look()
        script.prepare(0.002)
        script.copy(0.001)
        script.prepare(0.0035)
        script.call()
        script.backward()
        script.update()
    share = facts(script)["outside_next_frac"]
    assert not math.isnan(share)
    assert share == pytest.approx(0.005 / 0.0175, abs=2e-3)


def test_what_the_loop_reads_itself_is_told_by_the_steps_that_read() -> None:
    script = Reading()
    for step in range(20):
        script.step(n_bytes=2e6 if step % 4 else 100.0)
    found = facts(script)
    assert found["reading_steps_frac"] == 0.75
    assert found["step_read_bytes"] == pytest.approx(0.75 * 2e6 + 0.25 * 100)


def test_where_no_model_is_seen_sleep_counts_from_the_batch_on() -> None:
    script = Reading()
    for _ in range(20):
        script.fetch(TRAIN)
        script.look()
        script.queue(0.005)
        script.sleep(0.003)
        script.backward()
        script.update()
    found = facts(script)
    assert found["slept_frac"] == pytest.approx(0.003 / 0.020, abs=1e-3)
    assert found["reading_steps_frac"] == 0.0


def test_what_is_read_for_a_batch_that_is_fetched_ahead_is_the_loaders() -> None:
    script = Reading()
    script.fetch(TRAIN)
    for _ in range(20):
        script.look()
        script.spend()
        script.read(2e6)
        script.fetch(TRAIN)
        script.spend()
        script.backward()
        script.update()
    assert facts(script).get("reading_steps_frac", 0.0) == 0.0


def test_an_iterator_that_is_made_and_dropped_for_a_batch_is_a_wait_alone() -> None:
    """Of 94% that were waits it was said, too, that the script slept 31%, and that it prepared batches 30%."""
    script = Reading()
    for _ in range(20):
        script.step_with_an_iterator_of_its_own()
    found = facts(script)
    assert found["slept_frac"] == pytest.approx(0.0, abs=1e-3)
    assert found["outside_next_frac"] == pytest.approx(0.0, abs=1e-3)
