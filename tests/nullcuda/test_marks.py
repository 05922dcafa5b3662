"""Hooks mark the work of a GPU where they see something, and disturb nothing in it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import nullcuda
from tests.watch.watching import Host

STEP = [
    *("at requested", "requested", "received", "at received", "made", "made_between"),
    *("at copying", "at copied", "backward", "at backward"),
    *("at stepping", "stepped", "at stepped"),
]
END = ["at requested", "requested", "exhausted", "at received"]


@pytest.fixture(scope="module")
def marking(shm: Path) -> Iterator[Host]:
    host = Host("tests.nullcuda.marking", nullcuda.environment(shm))
    yield host
    host.close()


def run(marking: Host, function: str, **env: str) -> Any:
    return json.loads(marking.ok(function, watched=False, listen=False, env=env).returned)


def without_making(names: list[str]) -> list[str]:
    """Returns them without how batches were made: whether that is known depends on other hooks."""
    return [name for name in names if not name.startswith("made")]


def test_marks_are_set_where_hooks_see_something_and_begin_with_the_first_loss(
    marking: Host,
) -> None:
    found = without_making(run(marking, "a_loop"))
    first = ["begun", "requested", "received", "backward", "at backward", "stepped", "at stepped"]
    step = without_making(STEP)
    assert found == [*first, *step, *step, *END]


def test_an_optimizer_that_calls_the_model_steps_after_its_backward_pass(marking: Host) -> None:
    assert run(marking, "with_a_closure") == [
        *("at stepping", "at copying", "at copied", "backward", "at backward", "at stepping"),
        *("stepped", "at stepped"),
    ]


def test_an_iteration_is_marked_before_it_begins(marking: Host) -> None:
    """To start workers is a part of its first wait."""
    found = run(marking, "the_next_epoch")
    assert found[:4] == ["at requested", "begun", "at requested", "requested"]


def test_the_device_passes_all_marks_and_losses_come_with_them(marking: Host) -> None:
    n, same, n_losses, in_time = run(marking, "passed")
    assert n == 2 + 7 * 7 + 2, "the first step has those of its work, and the end two"
    assert same
    assert n_losses == 8
    assert in_time


def test_a_script_that_trains_on_the_cpu_does_not_start_the_gpu(marking: Host) -> None:
    assert run(marking, "on_the_cpu") == [False, False]


def test_only_copies_of_a_batch_are_marked_each_in_its_stream(marking: Host) -> None:
    found = without_making(run(marking, "a_batch_of_many"))
    begin, end = found.index("at received"), found.index("backward")
    assert found[begin + 1 : end] == [
        *("at copying", "at copied", "at copying"),
        *("at before_copy", "at copying", "at copied"),
    ]


def test_a_kept_batch_is_copied_once_and_again_where_the_script_has_changed_that(
    marking: Host,
) -> None:
    """Two batches are kept, and each is copied in two ways."""
    found = run(marking, "copies_of_kept_batches")
    first = [n for block, n in found if block == 1]
    second = [n for block, n in found if block == 3]
    assert first == [2, 2, 0, 0, 0, 0, 0, 0], "steps in which they are copied count in no block"
    assert second == [0, 0, 0, 1, 0, 0]


def test_a_copy_is_made_again_where_either_tensor_is_another(marking: Host) -> None:
    assert run(marking, "changed_kept_batches") == [1, 0, 1, 1, 1, 2, 1, 1]


def test_nothing_is_marked_while_a_graph_is_captured(marking: Host) -> None:
    meanwhile, after = run(marking, "captured")
    # it is over as the script leaves the stream of the capture
    assert meanwhile == ["backward", "stepped", "at aside"]
    assert after.count("at entered") == after.count("at left") == 2


def test_a_thread_that_only_fetches_sets_no_marks(marking: Host) -> None:
    found = run(marking, "in_another_thread")
    assert "received" in found
    assert not any(name.startswith("at ") for name in found)


def test_marks_go_on_in_the_next_thread_that_trains(marking: Host) -> None:
    first, second = run(marking, "in_threads_one_after_the_other")
    assert 0 < first <= second + 3


def test_a_fork_leaves_the_marks_to_its_parent(marking: Host) -> None:
    assert run(marking, "in_a_fork") == [0, True]


def test_marks_end_and_events_go_on_where_the_device_fails(marking: Host) -> None:
    env = {"NULLCUDA_FAIL_AT": "200"}
    done = marking.run("until_it_fails", watched=False, listen=False, env=env)
    assert done.status == 0, done.complaint
    marks, names = json.loads(done.returned)
    assert not marks
    assert without_making(names) == [
        *("begun", "requested", "received", "requested", "exhausted"),
    ]


def test_events_are_used_again(marking: Host) -> None:
    first, then = run(marking, "events_made")
    assert first < 30
    assert then == 0


def test_the_device_is_that_of_the_optimizers_parameters(marking: Host) -> None:
    assert run(marking, "where_the_optimizer_is", NULLCUDA_DEVICES="2") == ["cuda:0", "cuda:1", 0]
