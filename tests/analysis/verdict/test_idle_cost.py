"""What idle time costs: parts that add up to the training time, and no claim beyond what was shown."""

import dataclasses
import math
from typing import Any

import pytest

from tests.analysis.verdict.test_answer import PROVEN, STARVED
from vitprof.analysis.verdict import answer as answers
from vitprof.analysis.verdict.answer import Answer, answer_of, answer_so_far
from vitprof.config.device_rate import DeviceRate
from vitprof.recording.columns import RunSummary
from vitprof.recording.idle_cost import IdleCost, TimeCost
from vitprof.recording.verdict import CoresTaken, Gain, NoVerdict, OtherPrograms

RATE = DeviceRate(3.6, "USD")
"""A thousandth of a dollar for each second."""
SUMMARY = RunSummary(
    training_s=100.0, epoch_s=200.0, n_epochs_measured=2, energy_j=30_000.0, n_energy_gpus=1
)


def answered(rate: DeviceRate | None = RATE, summary: Any = SUMMARY, **verdict: Any) -> Answer:
    return answer_of(dataclasses.replace(STARVED, **verdict), summary=summary, rate=rate)


def cost_of(rate: DeviceRate | None = RATE, summary: Any = SUMMARY, **verdict: Any) -> IdleCost:
    cost = answered(rate, summary, **verdict).cost
    assert cost is not None
    return cost


def recoverable_s(cost: IdleCost) -> float:
    assert cost.so_far.recoverable is not None
    return cost.so_far.recoverable.seconds


def assert_adds_up(cost: TimeCost) -> None:
    assert math.fsum(part.seconds for part in cost.parts) == pytest.approx(cost.whole.seconds)
    (waiting,) = [part.seconds for part in cost.parts if part.name == "waiting"]
    assert waiting == pytest.approx(cost.waiting.seconds)


def test_the_parts_add_up_to_the_training_time() -> None:
    cost = cost_of()
    assert (cost.so_far.whole.seconds, cost.n_devices) == (100, 1)
    assert_adds_up(cost.so_far)
    assert cost.so_far.waiting.seconds == pytest.approx(74)
    assert cost.epoch is not None
    assert cost.epoch.whole.seconds == 200
    assert_adds_up(cost.epoch)


def test_money_and_energy_are_shares_of_the_whole() -> None:
    waiting = cost_of().so_far.waiting
    assert waiting.money == pytest.approx(0.074)
    assert waiting.joules == pytest.approx(0.74 * 30_000)
    epoch = cost_of().epoch
    assert epoch is not None
    assert epoch.whole.money == pytest.approx(0.2)
    assert epoch.whole.joules == pytest.approx(60_000)


def test_without_evidence_at_most_the_wait_is_recoverable() -> None:
    cost = cost_of()
    assert (cost.recoverable_by, recoverable_s(cost)) == ("at most", pytest.approx(74))
    assert answers.cost_in_words(answered()) == (
        "of 1 min 40 s of training: 25.0 s compute, 74.0 s waiting for data and copies "
        "(recoverable: up to 74.0 s), 1.00 s launching kernels. "
        "That is up to 0.0740 USD at 3.60 USD an hour of a device, "
        "up to 22.2 kJ by NVML's energy counter. "
        "Per epoch: up to 2 min 28 s of 3 min 20 s, 0.148 USD, 44.4 kJ."
    )


def test_what_replayed_batches_gained_is_recoverable() -> None:
    cost = cost_of(gain=Gain(2.0, 1.9, 2.1, basis="this run"))
    assert (cost.recoverable_by, recoverable_s(cost)) == ("measured", pytest.approx(50))
    assert "(recoverable: 50.0 s, measured)" in answers.cost_in_words(
        answered(gain=Gain(2.0, 1.9, 2.1, basis="this run"))
    )


def test_what_a_proof_gained_is_recoverable_and_nothing_beyond() -> None:
    proof = dataclasses.replace(PROVEN, times=2.5)
    answer = answer_of(STARVED, [proof], summary=SUMMARY, rate=RATE)
    assert answer.cost is not None
    assert (answer.cost.recoverable_by, recoverable_s(answer.cost)) == ("proven", pytest.approx(60))
    words = answers.cost_in_words(answer)
    assert "74.0 s waiting for data and copies (recoverable: 60.0 s, proven)" in words
    # time and money are proven; of the energy only the most is known
    assert "That is 0.0600 USD at" in words
    assert "up to 18.0 kJ" in words
    assert "Per epoch: 2 min 0 s of 3 min 20 s, 0.120 USD, up to 36.0 kJ." in words


def test_a_proof_while_other_programs_ran_proves_nothing_of_the_cost() -> None:
    disturbed = dataclasses.replace(PROVEN, others_cores=1.0)
    cost = answer_of(STARVED, [disturbed], summary=SUMMARY, rate=RATE).cost
    assert cost is not None
    assert cost.recoverable_by == "at most"


@pytest.mark.parametrize(
    "disturbed",
    [
        {"cause": "cpu_contention", "cause_frac": 0.5},
        {"cause": "unclear"},
        {"other_programs": OtherPrograms(0.4, slow_training_too=False)},
        {"cores_taken": CoresTaken(1.0, 2.0)},
    ],
)
def test_where_other_programs_ran_there_is_no_money_no_energy_and_nothing_recoverable(
    disturbed: dict[str, Any],
) -> None:
    cost = cost_of(**disturbed)
    assert cost.so_far.recoverable is None
    assert math.isnan(cost.so_far.whole.money)
    assert math.isnan(cost.so_far.waiting.joules)
    assert_adds_up(cost.so_far)
    words = answers.cost_in_words(answered(**disturbed))
    assert "recoverable" not in words
    assert words.endswith("Money and energy are left out: other programs ran.")
    assert "told" not in answers.cost_in_words(answered(None, **disturbed)), "nobody asked for it"


def test_a_simulated_device_costs_nothing_that_is_told() -> None:
    cost = cost_of(simulated=True, device="simulated")
    assert math.isnan(cost.so_far.whole.money)
    assert math.isnan(cost.so_far.whole.joules)
    assert recoverable_s(cost) == pytest.approx(74)
    words = answers.cost_in_words(answered(simulated=True, device="simulated"))
    assert words.count("USD") == 0
    assert "Money is left out: the device is simulated." in words


def test_without_a_verdict_or_with_replayed_batches_there_is_no_cost() -> None:
    why = NoVerdict("disturbed", n_steps=60, n_steady=55)
    assert answered(kind="inconclusive", why_none=why).cost is None
    assert answered(replay="device").cost is None
    assert answered(summary=None).cost is None
    assert answered(summary=RunSummary()).cost is None, "an older version noted no training time"
    assert answer_of(STARVED).cost is None


def test_without_a_rate_there_is_no_word_of_money() -> None:
    cost = cost_of(None)
    assert math.isnan(cost.so_far.whole.money)
    words = answers.cost_in_words(answered(None))
    assert "That is up to 22.2 kJ by NVML's energy counter." in words
    assert "hour" not in words


@pytest.mark.parametrize(
    ("device", "said"), [("gpu", True), ("cpu", False), ("simulated", False), ("untested", False)]
)
def test_energy_that_a_gpu_does_not_tell_is_not_available(device: str, said: bool) -> None:
    summary = dataclasses.replace(SUMMARY, energy_j=math.nan, n_energy_gpus=0)
    cost = cost_of(summary=summary, device=device, simulated=device == "simulated")
    assert math.isnan(cost.so_far.whole.joules)
    answer = answered(summary=summary, device=device, simulated=device == "simulated")
    assert ("Energy: not available." in answers.cost_in_words(answer)) is said


def test_energy_by_samples_of_the_power_is_said_to_be_so() -> None:
    summary = dataclasses.replace(SUMMARY, energy_j=math.nan, energy_by_power_j=30_000.0)
    assert cost_of(summary=summary).energy_by == "power"
    words = answers.cost_in_words(answered(summary=summary))
    assert "up to 22.2 kJ by samples of its power" in words


def test_several_devices_are_summed() -> None:
    summary = dataclasses.replace(SUMMARY, n_energy_gpus=4)
    cost = cost_of(summary=summary, n_ranks=4)
    assert (cost.n_devices, cost.so_far.whole.seconds) == (4, 400)
    assert cost.so_far.waiting.money == pytest.approx(4 * 0.074)
    assert cost.so_far.whole.joules == pytest.approx(30_000), "the sum of all of them already"
    assert_adds_up(cost.so_far)
    words = answers.cost_in_words(answered(summary=summary, n_ranks=4))
    assert words.startswith("of 6 min 40 s on 4 devices of training:")


def test_the_energy_of_some_of_the_devices_is_not_that_of_all() -> None:
    cost = cost_of(n_ranks=4)
    assert math.isnan(cost.so_far.whole.joules)
    assert cost.so_far.whole.money == pytest.approx(0.4)


def test_ranks_on_a_cpu_share_one_device() -> None:
    assert cost_of(device="cpu", n_ranks=4).n_devices == 1


def test_a_launch_bound_run_gets_back_its_wait_for_data_alone() -> None:
    cost = cost_of(
        kind="launch-bound",
        idle_frac=0.03,
        host_frac=0.02,
        launch_frac=0.71,
        paced_frac=0.73,
    )
    assert_adds_up(cost.so_far)
    assert recoverable_s(cost) == pytest.approx(3)
    by_name = {part.name: part.seconds for part in cost.so_far.parts}
    assert by_name["launches"] == pytest.approx(73)


def test_too_little_to_say_is_not_said() -> None:
    words = answers.cost_in_words(
        answered(kind="not input-bound", idle_frac=0.002, shares=(), gain=None)
    )
    assert words == "of 1 min 40 s of training: 98.8 s compute, 1.00 s launching kernels."


def test_while_a_run_goes_on_there_is_time_and_money_at_most() -> None:
    answer = answer_so_far(80, 0.5, 0.53, training_s=10.0, rate=RATE, n_devices=2)
    cost = answer.cost
    assert cost is not None
    assert_adds_up(cost.so_far)
    assert cost.epoch is None
    assert cost.so_far.whole.seconds == 20
    assert answers.cost_in_words(answer) == (
        "of 20.0 s on 2 devices of training: 9.40 s compute, 10.0 s waiting for data "
        "(recoverable: up to 10.0 s), 0.600 s idle otherwise. "
        "That is up to 0.0100 USD at 3.60 USD an hour of a device."
    ).replace("0.600 s", "600 ms")
    assert answer_so_far(80, 0.5, 0.53).cost is None
