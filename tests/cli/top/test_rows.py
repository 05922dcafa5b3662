"""What `top` lists of a run: in which order, in which words, and as which bar."""

import dataclasses
import datetime as dt
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitprof.analysis.verdict.answer import answer_so_far
from vitprof.cli.top import rows
from vitprof.cli.top.rows import TopRow


def row(run_id: int, *, idle: float = math.nan, speed: float = math.nan, **more: object) -> TopRow:
    answer = None
    if math.isfinite(idle):
        answer = answer_so_far(100, waits_frac=idle, idle_frac=min(1.0, idle + 0.02))
    known = {"name": "a", "state": "training", "live": True, "pid": 1, "host": "h"}
    given_values = {**known, "moment_s": 0.0, **more}
    return TopRow(run_id=run_id, answer=answer, steps_per_s=speed, **given_values)  # type: ignore[arg-type]


def order(listed: list[TopRow], sort: rows.Sort) -> list[int]:
    return [each.run_id for each in rows.in_order(listed, sort)]


def test_what_trains_comes_first_then_what_waits_then_what_has_ended() -> None:
    listed = [
        row(1, idle=0.9, live=False, state="done"),
        row(2, queued=True, state="queued"),
        row(3, idle=0.1, speed=50.0),
        row(4, idle=0.6, speed=20.0),
        row(5, state="starting"),
    ]
    assert order(listed, "newest") == [5, 4, 3, 2, 1]
    assert order(listed, "idle") == [4, 3, 5, 2, 1], "what is not known comes last"
    assert order(listed, "slowest") == [4, 3, 5, 2, 1]
    assert rows.headline(listed) == "3 running, 1 queued, 1 ended within the last hour"


def test_the_key_goes_through_all_orders_and_begins_again() -> None:
    sort: rows.Sort = "newest"
    seen = []
    for _ in rows.SORTS:
        seen.append(sort)
        sort = rows.next_sort(sort)
    assert (tuple(seen), sort) == (rows.SORTS, "newest")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(1, 40))
def test_the_cells_of_a_bar_add_up_and_differ_by_less_than_one_from_their_share(
    fracs: list[float], width: int
) -> None:
    cells = rows.shared_cells(fracs, width)
    whole = math.fsum(fracs)
    if whole <= 0:
        assert sum(cells) == 0
        return
    assert sum(cells) == width
    assert all(
        abs(n - width * frac / whole) < 1 + 1e-9 for n, frac in zip(cells, fracs, strict=True)
    )


def test_a_bar_has_what_is_waited_for_before_what_is_computed() -> None:
    drawn = rows.bar(row(1, idle=0.5), 20)
    assert [(part.words, n) for part, n in drawn] == [
        ("waits for data", 10),
        ("idle otherwise", 0),
        ("computes", 10),
    ]
    assert rows.bar(row(1), 20) == []


def test_an_idle_share_and_its_causes_are_those_of_the_answer() -> None:
    starved = row(1, idle=0.704)
    assert rows.idle_in_words(starved) == "70%"
    assert rows.causes(starved) == "waits for data 70%, idle otherwise 2.0%"
    assert (rows.idle_in_words(row(1)), rows.causes(row(1))) == ("", "")
    assert starved.answer is not None
    unknown = dataclasses.replace(starved.answer, headline="Disturbed", is_conclusive=False)
    assert rows.causes(dataclasses.replace(starved, answer=unknown)) == "Disturbed"


@pytest.mark.parametrize(
    ("stage", "step_s", "quiet_s", "words"),
    [
        ("training", 0.01, 3.0, "training"),
        ("training", 0.01, 75.0, "no step for 75.0 s"),
        ("training", 30.0, 75.0, "training"),
        ("training", math.nan, 75.0, "no step for 75.0 s"),
        ("evaluating", 0.01, 75.0, "evaluating"),
        ("", math.nan, 0.0, "starting"),
    ],
)
def test_a_run_of_which_no_step_comes_says_for_how_long(
    stage: str, step_s: float, quiet_s: float, words: str
) -> None:
    assert rows.training_state(stage, step_s, quiet_s) == words


def test_a_moment_is_a_time_today_and_a_day_before() -> None:
    now = dt.datetime(2026, 11, 30, 12, 0)
    assert rows.when(now.timestamp() - 3600, now.timestamp()) == "11:00"
    assert rows.when(now.timestamp() - 86_400, now.timestamp()) == "29 Nov"
    assert rows.when(math.nan, now.timestamp()) == ""


def test_an_empty_list_says_what_to_type() -> None:
    assert rows.what_to_type("vitprof", has_older=False) == (
        "no runs; vitprof watch -- python train.py watches your script"
    )
    assert "vitprof runs lists earlier runs" in rows.what_to_type("vitprof", has_older=True)


def test_what_does_not_fit_is_counted() -> None:
    assert rows.hidden_in_words(0, 0) == ""
    assert rows.hidden_in_words(1, 4) == "1 line above, 4 lines below"


def test_who_is_the_user_where_one_is_known_and_the_process() -> None:
    assert row(1, user="anna", pid=4711, host="node7").who == "anna, pid 4711 on node7"
    assert row(1, pid=4711, host="node7").who == "pid 4711 on node7"
