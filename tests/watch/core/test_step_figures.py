"""One object gives out steps with what the device, the rank and the script's preparation made of them."""

from tests.watch.core.test_preparation import LookedAt
from tests.watch.core.written import Script
from tests.watch.core.written_device import DeviceScript
from tests.watch.core.written_ranks import RankScript
from vitprof.watch.core.columns import columns_of
from vitprof.watch.core.loop import find_steps
from vitprof.watch.core.step_figures import StepBlock, StepFigures
from vitprof.watch.core.training import find_training


def taken(script: Script) -> tuple[StepBlock, StepFigures]:
    training = find_training(script.log)
    assert training is not None
    figures = StepFigures(warmup_steps=0)
    figures.add_rows((e.kind, e.at_s, e.thread, e.object, *e.values) for e in script.log.events)
    return figures.take(training.thread, find_steps(training).steps), figures


def test_a_plain_script_on_the_cpu_has_none_of_it() -> None:
    script = Script()
    script.train(12)
    block, figures = taken(script)
    assert len(block.steps) == 12
    assert block.device == block.ranks == 12 * [None]
    assert figures.facts() == {}
    columns = columns_of(block.steps, device=block.device, ranks=block.ranks)
    plain = columns_of(block.steps)
    assert {name: values.tobytes() for name, values in columns.items()} == {
        name: values.tobytes() for name, values in plain.items()
    }


def test_steps_wait_for_the_device() -> None:
    script = DeviceScript()
    script.train(4)
    block, figures = taken(script)
    assert block.steps == []
    script.pass_marks()
    figures.add_events(script.log.events)
    assert len(taken(script)[0].steps) == 4


def test_facts_of_ranks_and_of_preparation_stand_together() -> None:
    script = RankScript()
    script.fetch_with_ranks(101, 0.050)
    script.backward()
    script.update()
    assert set(taken(script)[1].facts()) == {"loader_waits_for_ranks", "unknown_loader_waits"}
    looked_at = LookedAt()
    for _ in range(10):
        looked_at.step()
    shares = {"outside_next_frac", "between_steps_frac", "asleep_frac"}
    assert set(taken(looked_at)[1].facts()) == shares
