"""Which rank of a distributed job the others wait for, and why."""

import math
from typing import Any

import numpy as np
import pytest

from vitprof.analysis.arrays import Series
from vitprof.analysis.rank_report import Ranks, late_ranks, too_little_of_rank_0
from vitprof.analysis.stragglers import NAMES, OWN, ranks_of

N = 200


def made(n_ranks: int = 4, n: int = N, seed: int = 0, **changed: Any) -> dict[int, Series]:
    """Steps of ranks that end together: 10 ms of data and 20 ms of forward pass each, with noise, then backward.
    `changed`: by "wait", "forward" or "values" a function of rank and step (n,) that gives factors.
    """
    rng = np.random.default_rng(seed)
    step = np.arange(n, dtype=np.float64)
    factor = {
        name: changed.get(name, lambda rank, step: 1.0)
        for name in ("wait", "between", "forward", "values")
    }
    own = {}
    for rank in range(n_ranks):
        wait = 0.010 * rng.lognormal(0, 0.05, n) * factor["wait"](rank, step)
        forward = 0.020 * rng.lognormal(0, 0.05, n) * factor["forward"](rank, step)
        own[rank] = wait, 0.001 * factor["between"](rank, step) * np.ones(n), forward
    step_s = np.max([sum(each) for each in own.values()], axis=0) + 0.030
    return {
        rank: {
            "step": step,
            "epoch": step // 50,
            "warmup": (step < 5).astype(float),
            "t_start_s": np.cumsum(step_s) - step_s,
            "exposed_wait_s": wait,
            "data_wait_s": wait,
            "step_s": step_s,
            "samples": np.full(n, 8.0),
            "batch_values": 1000.0 * np.ones(n) * factor["values"](rank, step),
            "between_s": between,
            "collectives": np.ones(n),
            "awaited_s": np.zeros(n),
            "read_s": np.full(n, 0.008),
            "transform_s": np.full(n, 0.002),
            "forward_s": forward * changed.get("known", 1.0),
        }
        for rank, (wait, between, forward) in own.items()
    }


def only(which: int, times: float) -> Any:
    return lambda rank, step: times if rank == which else 1.0


def found(**changed: Any) -> Ranks:
    seen = ranks_of(made(**changed))
    assert seen is not None
    return seen


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"wait": only(2, 3)}, "input"),
        ({"forward": only(2, 2)}, "compute"),
        ({"between": only(2, 20)}, "between steps"),
        ({"forward": only(2, 2), "values": only(2, 2)}, "heavier data"),
        ({"wait": only(2, 3), "values": only(2, 3)}, "heavier data"),
        ({"wait": only(2, 6), "values": only(2, 1.5)}, "input"),
    ],
)
def test_a_chronic_straggler_is_named_by_its_cause(changed: dict[str, Any], cause: str) -> None:
    seen = found(**changed)
    assert (seen.straggler, seen.cause, seen.wandering) == (2, cause, False)
    late = late_ranks({"ranks": seen.to_dict()})
    assert late is not None
    assert (late.ranks, late.cause) == ((2,), cause)
    assert (late.frac, late.low, late.high) == (seen.saves.value, seen.saves.low, seen.saves.high)
    assert 0 < seen.saves.low < seen.saves.value < seen.saves.high < 1
    assert seen.figures[2].waits_for_others_frac < 0.01
    assert min(f.waits_for_others_frac for f in seen.figures if f.rank != 2) > 0.1
    assert set(seen.of_epochs) == {(epoch, 2) for epoch in range(4)}
    at_least = "at least " if cause in ("compute", "heavier data") else ""
    assert f"rank 2 holds up the others for {at_least}{seen.saves.value:.0%}" in seen.sentences[0]


def test_what_it_saves_is_what_it_holds_up() -> None:
    """20 ms of a step of 80 ms, one for each of 195 steps."""
    seen = found(wait=only(1, 3))
    assert seen.saves.value == pytest.approx(0.02 / 0.08, abs=0.02)
    wait, own = (
        np.array([sum(of[name][5:] for name in names) for of in made(wait=only(1, 3)).values()])
        for names in (OWN[:1], OWN)
    )
    assert seen.lost_s == pytest.approx(
        (own.max(axis=0) - (own - wait).max(axis=0)).sum(), rel=1e-9
    )
    assert seen.lost_frac == pytest.approx(0.03 / 0.08, abs=0.02)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n_ranks", [2, 4])
def test_no_straggler_is_named_where_there_is_none(n_ranks: int, seed: int) -> None:
    seen = found(n_ranks=n_ranks, seed=seed)
    assert (seen.straggler, seen.wandering, seen.why_not) == (None, False, "")
    assert late_ranks({"ranks": seen.to_dict()}) is None
    assert "no rank clearly holds up the others" in seen.sentences[0]


@pytest.mark.parametrize("every", [1, 50], ids=["each step", "each epoch"])
def test_a_culprit_that_changes_is_found_though_means_are_alike(every: int) -> None:
    seen = found(wait=lambda rank, step: np.where(step // every % 4 == rank, 4.0, 1.0))
    assert (seen.straggler, seen.wandering) == (None, True)
    assert seen.saves.value == pytest.approx(0.03 / 0.09, abs=0.03)
    assert "the rank that waits longest for its data changes" in seen.sentences[0]
    if every == 50:
        assert seen.of_epochs == ((0, 0), (1, 1), (2, 2), (3, 3))


@pytest.mark.parametrize(
    ("changed", "stragglers", "cause"),
    [
        (
            {"wait": lambda rank, step: np.where((rank == 2) & (step % 4 == 0), 20.0, 1.0)},
            (2,),
            "input",
        ),  # in bursts
        ({"wait": lambda rank, step: 3.0 if rank > 1 else 1.0}, (2, 3), "input"),  # a whole node
        ({"forward": lambda rank, step: 2.0 if rank > 1 else 1.0}, (2, 3), "compute"),
        (
            {"forward": only(2, 4), "values": only(2, 1.15)},
            (2,),
            "compute",
        ),  # for more than its data explain
        (
            {"forward": only(2, 4), "values": only(2, 2.0)},
            (2,),
            "heavier data",
        ),  # as attention takes
        ({"wait": only(1, 3), "forward": only(2, 3)}, (2,), "compute"),  # hides the wait of another
    ],
)
def test_ranks_that_hold_up_the_others(
    changed: dict[str, Any], stragglers: tuple[int, ...], cause: str
) -> None:
    seen = found(**changed)
    assert (seen.stragglers, seen.cause, seen.within) == (stragglers, cause, ())
    assert (
        f"rank{'s' * (len(stragglers) > 1)} {', '.join(map(str, stragglers))} hold"
        in seen.sentences[0]
    )


def test_waits_that_a_later_rank_hides_cost_nothing() -> None:
    """20 ms more of one rank's data, and 40 ms more of another's forward pass: free data gain no more than 10 ms."""
    seen = found(wait=only(0, 3), forward=only(2, 3))
    assert seen.figures[0].exposed_frac == pytest.approx(0.3, abs=0.02)
    assert seen.lost_frac == pytest.approx(0.1, abs=0.02)
    why = too_little_of_rank_0({"ranks": seen.to_dict()})
    assert why is not None
    assert (why.reason, why.frac) == ("rank_0_early", pytest.approx(0.1, abs=0.02))
    assert why.rank_0_frac == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("which", ["wait", "forward"])
def test_a_straggler_for_a_time_only_is_named_with_its_steps(which: str) -> None:
    seen = found(**{which: lambda rank, step: np.where((rank == 1) & (step >= 100), 3.0, 1.0)})
    assert (seen.stragglers, seen.cause) == ((1,), {"wait": "input", "forward": "compute"}[which])
    (late,) = seen.within
    assert abs(late.first - 100) < 5
    assert late.last == N - 1
    assert f", about in steps {late.first} to 199." in seen.sentences[0]


@pytest.mark.parametrize("late_in", [(0, 2), (1, 3), (0, 3), (0, 1, 3)])
def test_quarters_in_which_nobody_was_late_are_not_among_the_steps_of_a_straggler(
    late_in: tuple[int, ...],
) -> None:
    n, warmup = 405, 5
    quarter_of = (np.arange(n) - warmup) // 100
    late = np.isin(quarter_of, late_in)
    seen = found(n=n, wait=lambda rank, step: np.where((rank == 1) & late, 4.0, 1.0))
    assert seen.stragglers == (1,)
    named = np.zeros(n, bool)
    for stretch in seen.within:
        named[stretch.first : stretch.last + 1] = True
    assert (named == late)[warmup:].all()
    words = " and ".join(f"{each.first} to {each.last}" for each in seen.within)
    assert f", about in steps {words}." in seen.sentences[0]
    steps = [step for each in seen.within for step in (each.first, each.last)]
    assert seen.to_dict()["within"] == steps


@pytest.mark.parametrize(
    ("changed", "cause", "words"),
    [
        (
            {"forward": lambda rank, step: np.where(step % 4 == rank, 3.0, 1.0)},
            "compute",
            "computes longest changes",
        ),
        (
            {"between": lambda rank, step: np.where(step % 4 == rank, 40.0, 1.0)},
            "between steps",
            "the last rank changes",
        ),
    ],
)
def test_what_changes_its_rank_need_not_be_data(
    changed: dict[str, Any], cause: str, words: str
) -> None:
    seen = found(**changed)
    assert (seen.straggler, seen.wandering, seen.cause) == (None, True, cause)
    assert words in seen.sentences[0]
    heavy = found(**changed, values=changed.get("forward", lambda rank, step: 1.0))
    assert heavy.cause == ("heavier data" if "forward" in changed else cause)


def test_where_gradients_are_accumulated_ranks_wait_for_each_other_at_each_collective() -> None:
    """20 ms of four steps, in another one of them each time: it is the same rank, once in each round."""
    steps = made(
        wait=lambda rank, step: np.where((rank == 2) & (step % 4 == step // 4 % 4), 3.0, 1.0)
    )
    for of in steps.values():
        of["collectives"] = (of["step"] % 4 == 0) * 2.0
    seen = ranks_of(steps)
    assert seen is not None
    assert (seen.straggler, seen.cause, seen.n_steps) == (2, "input", 48)
    assert seen.saves.value == pytest.approx(0.02 / (3 * 0.06 + 0.08), abs=0.02)


def test_what_is_not_known_between_steps_is_said_and_ranks_of_other_lengths_do_not_wait() -> None:
    steps = made()
    for of in steps.values():
        of["between_s"] = np.where(of["step"] % 20 == 7, math.nan, of["between_s"])
    seen = ranks_of(steps)
    assert seen is not None
    assert seen.sentences[0].endswith(
        "no rank clearly holds up the others by its data or up to its first backward pass."
    )
    assert "What each does before 10 steps (5.2% of the time) is not known: " in seen.sentences[2]
    groups = made(wait=only(3, 4))
    for rank in (0, 1):
        groups[rank]["step_s"] = groups[rank]["step_s"] / 2
    apart = ranks_of(groups)
    assert apart is not None
    assert (apart.straggler, "their steps differ in length (" in apart.sentences[0]) == (None, True)


@pytest.mark.parametrize(("every", "n"), [(0, 0), (40, 4)])
def test_ranks_that_do_not_wait_for_each_other_have_no_straggler(every: int, n: int) -> None:
    steps = made(wait=only(2, 3))
    for of in steps.values():
        of["collectives"] = (of["step"] % every == 0) * 1.0 if every else np.zeros(N)
    seen = ranks_of(steps)
    assert seen is not None
    words = (
        f"4 ranks: they made {n} rounds of steps with a collective at the end together "
        "after the warm-up, and 20 are"
    )
    assert seen.sentences[0].startswith(words)
    assert (seen.straggler, seen.to_dict()["lost_s"]) == (None, None)


def test_a_single_long_step_is_one_off_and_names_nobody() -> None:
    seen = found(wait=lambda rank, step: np.where((rank == 3) & (step == 77), 100.0, 1.0))
    assert (seen.straggler, seen.wandering, seen.one_off[0]) == (None, False, 1)
    assert seen.one_off[1] == pytest.approx(0.99, abs=0.1)
    assert "In 1 step rank 3 held up the others for long" in seen.sentences[-2]


def test_what_is_rare_and_long_is_named_and_counts_by_its_time() -> None:
    """5 steps of one rank, which blocks of steps do not show; and 4 waits before steps that hold collectives."""
    seen = found(wait=lambda rank, step: np.where((rank == 3) & (step % 40 == 7), 60.0, 1.0))
    assert (seen.straggler, seen.one_off_ranks, seen.one_off[0]) == (None, (3,), 5)
    assert seen.sentences[0].startswith("4 ranks: rank 3 holds up the others in 5 steps (")
    steps = made()
    for of in steps.values():
        long = of["step"] % 50 == 49
        of["between_s"] = np.where(long, math.nan, of["between_s"])
        of["t_start_s"] = of["t_start_s"] + 3.0 * np.cumsum(
            long
        )  # an evaluation, which is in no step
    (words,) = [line for line in ranks_of(steps).sentences if "is not known" in line]  # type: ignore[union-attr]
    assert words.startswith("What each does before 4 steps (5")


def test_steps_with_a_collective_before_the_backward_pass_are_said() -> None:
    steps = made()
    for of in steps.values():
        of["forward_s"] = np.where(of["step"] % 5 == 3, math.nan, of["forward_s"])
    words = (
        "39 steps (20% of the time) are not compared: a collective comes before the backward pass."
    )
    assert words in ranks_of(steps).sentences  # type: ignore[union-attr]


def test_a_straggler_that_waits_for_others_elsewhere_is_none() -> None:
    """As where ranks meet before the forward pass: rank 1 is late before that, rank 2 after it, and waits there."""
    steps = made(forward=only(2, 2), wait=only(1, 1.5))
    steps[2]["awaited_s"] = steps[2]["awaited_s"] + 0.005
    seen = ranks_of(steps)
    assert seen is not None
    assert (seen.straggler, seen.cause, seen.in_doubt) == (None, "", True)
    assert seen.why_not.startswith(
        "rank 2 waits for others 6.2% of the time outside the backward pass: which rank"
    )
    why = too_little_of_rank_0({"ranks": seen.to_dict()})
    assert why is not None
    assert why.reason == "ranks_in_doubt"
    steps[2]["awaited_s"], steps[3]["awaited_s"] = steps[3]["awaited_s"], steps[2]["awaited_s"]
    assert ranks_of(steps).straggler == 2, "others wait for it"  # type: ignore[union-attr]
    steps = made()
    steps[0]["awaited_s"] = steps[0]["awaited_s"] + 0.06 * (
        steps[0]["step"] % 3 == 0
    )  # in the step before
    steps[0]["forward_s"][2::3] = math.nan
    second = ranks_of(steps).sentences[1]  # type: ignore[union-attr]
    assert second == "But rank 0 waits for others 33% of the time outside the backward pass."


def test_waits_in_a_loader_with_collectives_that_are_not_known_name_nobody() -> None:
    seen = ranks_of(made(wait=only(1, 3)), facts := {"unknown_loader_waits": 150})
    assert seen is not None
    assert (seen.straggler, seen.sentences) == (None, (f"4 ranks: {seen.why_not}.",))
    why = too_little_of_rank_0(facts | {"ranks": seen.to_dict()})
    assert why is not None
    assert (why.reason, why.n) == ("collective_in_loader", 150)
    assert seen.why_not.startswith("next(loader) contains a collective, 150 times. How long it")


def test_more_samples_of_one_size_are_heavier_only_by_what_they_take() -> None:
    for samples, times, cause in (
        (1.25, 1.65, "compute"),
        (1.0, 1.55, "heavier data"),
        (1.25, 1.3, "heavier data"),
    ):
        steps = made(forward=only(1, times), values=only(1, 1.25))
        steps[1]["samples"] = steps[1]["samples"] * samples
        assert ranks_of(steps).cause == cause  # type: ignore[union-attr]


def test_without_the_forward_pass_compute_is_not_judged_and_data_are() -> None:
    """As where other collectives are in it."""
    seen = found(wait=only(1, 3), known=math.nan)
    assert (seen.straggler, seen.cause) == (1, "input")
    hidden = found(forward=only(1, 2), known=math.nan)
    assert (hidden.straggler, hidden.why_not, hidden.waits_alone) == (None, "", True)
    assert hidden.sentences[0] == "4 ranks: no rank's data clearly hold up the others."
    assert hidden.sentences[1].startswith("How long each computes is not known")
    heavy = found(forward=only(1, 2), values=only(1, 2), known=math.nan)
    assert heavy.straggler is None
    assert (
        "rank 1 was given 2.00 times what the others got, but whether they wait"
        in heavy.sentences[0]
    )


def test_too_few_common_steps_say_so_and_other_numbers_do_not_matter() -> None:
    steps = made(n_ranks=2)
    late = {name: values[190:] for name, values in steps[1].items()}
    seen = ranks_of({0: steps[0], 1: late})
    assert seen is not None
    assert seen.sentences == (
        "2 ranks: they made 10 steps together after the warm-up, and 20 are needed.",
    )
    assert seen.to_dict()["figures"][0]["own_ms"] is None
    assert ranks_of({0: steps[0]}) is None
    assert set(NAMES) == set(steps[0])


def test_steps_that_not_all_ranks_made_are_said() -> None:
    steps = made()
    line = "20 steps are in no figure, as not all ranks made them."
    assert line not in ranks_of(steps).sentences  # type: ignore[union-attr]
    steps[2] = {name: values[: N - 20] for name, values in steps[2].items()}
    assert line in ranks_of(steps).sentences  # type: ignore[union-attr]


def test_it_is_plain_json() -> None:
    plain = found(wait=only(2, 3)).to_dict()
    assert (plain["straggler"], plain["cause"], len(plain["figures"]), len(plain["saves"])) == (
        2,
        "input",
        4,
        3,
    )
    assert plain["sentences"][0].startswith("4 ranks: rank 2 holds up the others")


@pytest.mark.parametrize(
    ("cores", "changed", "cause"),
    [
        ((0.0, 1.2), {"wait": only(2, 3)}, "machine"),
        ((0.0, 1.2), {"forward": only(2, 2)}, "machine"),
        (
            (0.0, 1.2),
            {"wait": only(2, 3), "values": only(2, 3)},
            "heavier data",
        ),  # that is enough of a reason
        ((1.2, 1.2), {"wait": only(2, 3)}, "input"),  # the other node is as busy
        ((1.2, 0.0), {"wait": only(2, 3)}, "input"),
        ((None, 1.2), {"wait": only(2, 3)}, "input"),
    ],
)
def test_a_node_that_other_programs_keep_busy_is_the_cause(
    cores: tuple[float | None, float], changed: dict[str, Any], cause: str
) -> None:
    nodes = [
        {"host": "ab"[i], "ranks": [2 * i, 2 * i + 1], "others_cores": cores[i]} for i in range(2)
    ]
    seen = ranks_of(made(**changed), {"nodes": nodes})
    assert seen is not None
    assert (seen.straggler, seen.cause) == (2, cause)
    assert "rank 2 (on b) holds" in seen.sentences[0]
    words = (
        "The cause is machine: other programs took 1.20 cores there, and no other node is as busy."
    )
    assert (words in seen.sentences) is (cause == "machine")


@pytest.mark.parametrize(
    ("slow", "mhz", "cause"), [(2, 1100, "machine"), (2, 1700, "compute"), (1, 1100, "compute")]
)
def test_the_gpu_that_is_slowed_down_is_the_cause(slow: int, mhz: float, cause: str) -> None:
    clocks = {str(rank): 1755.0 for rank in range(4)} | {str(slow): mhz}
    seen = ranks_of(made(forward=only(2, 2)), {"clocks": clocks})
    assert seen is not None
    assert (seen.straggler, seen.cause, seen.on) == (2, cause, "")
    words = "The cause is machine: its GPU's clock was 1,100 MHz, that of the others 1,755 or more."
    assert (words in seen.sentences) is (cause == "machine")


@pytest.mark.parametrize(
    ("disk", "reads", "transforms", "cause"),
    [
        (80.0, {2: 3.0, 3: 3.0}, {}, "machine"),
        (0.0, {2: 3.0, 3: 3.0}, {}, "input"),  # its files are in memory
        (80.0, {2: 3.0}, {}, "input"),  # of one rank alone
        (80.0, {2: 3.0, 3: 3.0}, {2: 3.0, 3: 3.0}, "input"),  # its cores are slow, too
        (80.0, {2: 1.3, 3: 1.3}, {}, "input"),
    ],
)
def test_a_node_whose_disk_is_slower_is_the_cause(
    disk: float, reads: dict[int, float], transforms: dict[int, float], cause: str
) -> None:
    steps = made(wait=only(2, 3))
    for rank, of in steps.items():
        of["read_s"], of["transform_s"] = (
            of["read_s"] * reads.get(rank, 1),
            of["transform_s"] * transforms.get(rank, 1),
        )
    nodes = [
        {"host": host, "ranks": ranks, "others_cores": 0.0, "disk_mb_per_s": mb}
        for host, ranks, mb in (("a", [0, 1], 0.0), ("b", [2, 3], disk))
    ]
    seen = ranks_of(steps, {"nodes": nodes})
    assert seen is not None
    assert (seen.straggler, seen.cause, seen.on) == (2, cause, "b")
    if cause == "machine":
        assert (
            seen.machine
            == "reading a batch takes 24.0 ms there, from a disk at 80 MB/s, elsewhere 8.00 ms"
        )
