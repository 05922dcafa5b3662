"""What is a rank's own of each step, one shape of script a test, at times that nobody measured.

A batch takes 10 ms, and the host 1 ms for each part of the work.
"""

import math

from tests.watch.core.written import TRAIN, Script
from tests.watch.core.written_ranks import RankOnDevice, RankScript, replayed

NAMES = ("batch_values", "between_s", "collectives", "awaited_s", "forward_s")


def test_where_a_process_trains_alone_nothing_is_known_of_ranks() -> None:
    script = Script()
    script.train(3)
    columns, ranks = replayed(script)
    assert all(math.isnan(value) for name in NAMES for value in columns[name])
    assert ranks.facts() == {}


def test_collectives_of_the_backward_pass_are_counted_and_leave_the_rest_known() -> None:
    """As DistributedDataParallel's, which no call of Python begins."""
    script = RankScript()
    for _ in range(3):
        script.fetch(TRAIN)
        script.backward()
        script.all_reduce(0.030, seen=False)
        script.update()
        script.now_s += 0.005
    columns, ranks = replayed(script)
    assert columns["collectives"][1:] == [1.0, 1.0]
    assert columns["forward_s"] == [0.001, 0.001, 0.001]
    assert columns["between_s"][1:] == [0.005, 0.005]
    assert columns["awaited_s"] == [0.0, 0.0, 0.0]
    assert ranks.facts() == {}


def test_waits_in_the_sending_of_buffers_are_taken_off_the_forward_pass() -> None:
    script = RankScript()
    for _ in range(3):
        script.fetch(TRAIN)
        script.send_buffers(0.040)
        script.now_s += 0.002
        script.backward()
        script.update()
    columns, _ = replayed(script)
    assert columns["forward_s"] == 3 * [0.003]
    assert columns["awaited_s"][1:] == [0.040, 0.040], "since the batch before"
    assert columns["collectives"][1:] == [2.0, 2.0]


def test_a_forward_pass_with_another_collective_is_not_known() -> None:
    script = RankScript()
    for _ in range(3):
        script.fetch(TRAIN)
        script.all_reduce(0.002)
        script.backward()
        script.update()
    columns, _ = replayed(script)
    assert all(map(math.isnan, columns["forward_s"]))
    assert columns["between_s"][1:] == [0.0, 0.0]


def test_own_work_between_steps_is_without_waits_and_not_known_with_a_collective() -> None:
    script = RankScript()
    script.train()
    script.now_s += 0.004
    script.wait_at_barrier(0.050)
    script.train()
    script.now_s += 0.004
    script.all_reduce(0.050)
    script.train()
    columns, _ = replayed(script)
    assert columns["between_s"][1] == 0.004
    assert columns["awaited_s"][1:] == [0.050, 0.050]
    assert math.isnan(columns["between_s"][2])


def test_own_work_between_steps_follows_an_optimizer() -> None:
    """Gradients are accumulated over two batches."""
    script = RankScript()
    for _ in range(2):
        script.fetch(TRAIN)
        script.backward()
        script.fetch(TRAIN)
        script.backward()
        script.update()
        script.now_s += 0.003
    columns, _ = replayed(script)
    assert [math.isnan(value) for value in columns["between_s"]] == [True, True, False, True]
    assert columns["between_s"][2] == 0.003


def test_a_wait_for_other_ranks_in_the_loader_is_none_for_data() -> None:
    script = RankScript()
    script.train(3)
    script.fetch_with_ranks(TRAIN, 0.050)
    script.backward()
    script.update()
    script.train()
    columns, ranks = replayed(script)
    assert columns["data_wait_s"] == 5 * [0.010]
    assert columns["awaited_s"][3] == 0.050
    assert columns["between_s"][3] == 0.0
    assert ranks.facts() == {"loader_waits_for_ranks": 1, "unknown_loader_waits": 0}


def test_what_a_rank_does_between_two_epochs_is_its_own() -> None:
    script = RankScript()
    script.train(2)
    script.now_s += 0.001
    script.exhaust(TRAIN)
    script.now_s += 0.500
    script.train(2)
    columns, _ = replayed(script)
    assert columns["between_s"][2] == 0.501
    assert columns["forward_s"][2] == 0.001
    assert columns["data_wait_s"][2] == 0.020, "for the end of the first epoch, too"


def test_a_wait_for_other_ranks_as_an_epoch_ends_is_none_of_a_ranks_work() -> None:
    """Workers of `DataLoader` that are shut down behind a barrier, for one."""
    script = RankScript()
    script.train(2)
    script.exhaust_with_ranks(TRAIN, 0.050)
    script.now_s += 0.500
    script.train(2)
    columns, ranks = replayed(script)
    assert columns["between_s"][2] == 0.500
    assert columns["awaited_s"][2] == 0.050
    assert columns["data_wait_s"][2] == 0.020
    assert ranks.facts() == {"loader_waits_for_ranks": 1, "unknown_loader_waits": 0}


def test_a_collective_in_the_loader_that_nobody_is_seen_to_wait_for_leaves_a_wait_unknown() -> None:
    script = RankScript()
    script.fetch_with_ranks(TRAIN, 0.050, seen=False)
    script.backward()
    script.update()
    columns, ranks = replayed(script)
    assert columns["data_wait_s"][0] == 0.060
    assert (ranks.n_loader_waits, ranks.n_unknown_waits) == (1, 1)


def test_the_first_wait_of_an_epoch_has_no_step_before_it() -> None:
    script = RankScript()
    script.fetch_with_ranks(TRAIN, 0.050)
    script.backward()
    script.update()
    _, ranks = replayed(script)
    assert ranks.facts() == {"loader_waits_for_ranks": 1, "unknown_loader_waits": 0}


def test_what_a_rank_was_given_is_the_size_of_its_last_batch() -> None:
    script = RankScript()
    script.train(2)
    received = [e for e in script.log.events if e.kind.name == "RECEIVED"]
    for size, event in zip((12.0, 24.0), received, strict=True):
        at = script.log.events.index(event)
        samples, first, _ = event.values
        script.log.events[at] = event._replace(values=(samples, first, size))
    columns, _ = replayed(script)
    assert columns["batch_values"] == [12.0, 24.0]


def test_on_a_device_the_forward_pass_is_the_devices_without_the_sending() -> None:
    """2 ms of work after 5 ms of sending, which the host launches at once."""
    script = RankOnDevice()
    for _ in range(3):
        script.fetch(TRAIN)
        script.send_buffers(0.005)
        script.backward()
        script.update()
    columns, _ = replayed(script)
    assert columns["forward_s"] == 3 * [0.002]
    assert columns["awaited_s"][1:] == [0.006, 0.006], "the device, and 1 ms of the host"


def test_on_a_device_idle_time_before_the_compute_is_the_ranks_own_but_for_its_data() -> None:
    script = RankOnDevice()
    for _ in range(3):
        script.train()
        script.wait_for_device()
        script.now_s += 0.007
    columns, _ = replayed(script)
    # idle for 7 ms since the optimizer stepped, then for data
    assert columns["between_s"][1:] == [0.007, 0.007]
    assert columns["exposed_wait_s"][1:] == [0.010, 0.010]


def test_on_a_device_a_wait_of_the_host_leaves_the_forward_pass_unknown() -> None:
    script = RankOnDevice()
    for _ in range(3):
        script.fetch(TRAIN)
        script.all_reduce(0.002)
        script.backward()
        script.update()
    columns, _ = replayed(script)
    assert all(map(math.isnan, columns["forward_s"]))


def test_what_is_forgotten_changes_no_later_step() -> None:
    script = RankScript()
    for _ in range(6):
        script.fetch(TRAIN)
        script.send_buffers(0.001)
        script.backward()
        script.all_reduce(0.002)
        script.update()
    columns, _ = replayed(script)
    assert columns["collectives"][1:] == 5 * [3.0]
    assert columns["awaited_s"][1:] == 5 * [0.003]
    assert columns["forward_s"] == 6 * [0.001]
