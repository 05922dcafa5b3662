"""What `top` reads of a store: the figures that all else shows, each step once, and nothing is written."""

import contextlib
import math
import resource
import socket
import sqlite3
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.cli.top.recorded import COMMAND, FAILED, FED, STARVED, Running, ended, running
from tests.store.postgresql import Server, server  # noqa: F401
from vitprof import formats
from vitprof.analysis.timing import summary
from vitprof.analysis.verdict.answer import answer_of
from vitprof.cli.top import drawing, rows
from vitprof.cli.top.reading import GONE, LOOK_AGAIN_S, RECENT_S, StoreReader
from vitprof.cli.top.rows import TopRow
from vitprof.cli.top.view import View
from vitprof.config import RunConfig
from vitprof.errors import StoreGoneError
from vitprof.recording.columns import STEP_COLUMNS
from vitprof.store import RunQuery, RunStore
from vitprof.store.database import now_utc


class Clocks:
    """Both clocks of a reader, moved by hand from what they are now."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self._wall_s = time.time()
        self._monotonic_s = time.monotonic()

    def wall(self) -> float:
        return self._wall_s + self.passed_s

    def monotonic(self) -> float:
        return self._monotonic_s + self.passed_s


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def reader(store: RunStore, clocks: Clocks) -> StoreReader:
    return StoreReader(store, wall_clock=clocks.wall, clock=clocks.monotonic)


def by_id(reader: StoreReader) -> dict[int, TopRow]:
    return {row.run_id: row for row in reader.read().rows}


def test_a_run_that_goes_on_has_the_figures_of_its_steps_so_far(
    store: RunStore, reader: StoreReader, clocks: Clocks, recorded: dict[str, int]
) -> None:
    began_s = clocks.monotonic() - 60
    live = running(store, recorded[STARVED], t_origin_s=began_s, owner_host=socket.gethostname())
    (started,) = [row for row in reader.read().rows if row.live]
    assert (started.state, started.answer, rows.speed_in_words(started)) == ("training", None, "")
    for n in (70, 30):
        live.go_on(n)
        row = by_id(reader)[live.id]
    assert (row.name, row.simulated) == (COMMAND, True)
    assert (row.user, row.pid, row.host) == ("anna", 4711, "node7")
    assert row.moment_s == pytest.approx(clocks.wall() - 60)
    totals = summary.RunningTotals()
    totals.add({name: values[:100] for name, values in live.steps.items()})
    sums = totals.totals
    assert sums.steps > 90
    assert row.steps_per_s == pytest.approx(sums.steps / sums.step_s)
    assert row.idle_frac == pytest.approx(sums.exposed_wait_s / sums.step_s)
    assert rows.causes(row).startswith(f"waits for data {formats.percent(row.idle_frac)}")


def test_each_step_is_read_once(
    store: RunStore,
    reader: StoreReader,
    recorded: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = running(store, recorded[STARVED])
    live.go_on(50)
    reader.read()
    read = Mock(side_effect=store.steps_in_parts)
    monkeypatch.setattr(store, "steps_in_parts", read)
    looked_up = Mock(side_effect=store.run)
    monkeypatch.setattr(store, "run", looked_up)
    reader.read()
    live.go_on(20)
    reader.read()
    reader.read()
    assert [call.kwargs["after"] for call in read.call_args_list] == [49, 49, 69]
    assert set(read.call_args.kwargs["names"]) < set(STEP_COLUMNS)
    assert not looked_up.called, "runs that have ended are known"


def test_a_run_that_has_ended_has_the_figures_of_its_verdict(
    store: RunStore, reader: StoreReader, recorded: dict[str, int]
) -> None:
    listed = by_id(reader)
    assert set(listed) == set(recorded.values())
    for name in (STARVED, FED):
        run = store.run(recorded[name])
        row = listed[run.id]
        assert run.verdict is not None
        assert row.answer == answer_of(run.verdict)
        (of_list,) = [r for r in store.list_runs(RunQuery(), limit=100) if r.id == run.id]
        assert of_list.idle_frac == row.idle_frac, "as `vitprof runs` has it"
        assert run.summary is not None
        speed = run.summary.samples_per_s / run.config.batch_size
        assert row.steps_per_s == pytest.approx(speed)
    failed = listed[recorded[FAILED]]
    assert (failed.state, failed.live) == ("failed", False)


def test_a_run_that_ends_is_listed_as_ended_at_once_with_its_verdict(
    store: RunStore, reader: StoreReader, clocks: Clocks, recorded: dict[str, int]
) -> None:
    live = running(store, recorded[STARVED])
    live.go_on(50)
    assert by_id(reader)[live.id].live
    live.end(recorded[STARVED])
    clocks.passed_s += 2
    row = by_id(reader)[live.id]
    assert (row.live, row.state, row.moment_s) == (False, "done", clocks.wall())
    assert row.idle_frac == by_id(reader)[recorded[STARVED]].idle_frac
    clocks.passed_s += LOOK_AGAIN_S
    store.update_run(live.id, facts={}, name="renamed")
    assert by_id(reader)[live.id].name == "renamed"
    assert by_id(reader)[live.id].moment_s == row.moment_s


def test_runs_leave_the_list_after_an_hour_and_once_they_are_deleted(
    store: RunStore, reader: StoreReader, clocks: Clocks, recorded: dict[str, int]
) -> None:
    store.update_run(recorded[FED], created_utc=now_utc(1))
    assert set(by_id(reader)) == set(recorded.values()) - {recorded[FED]}
    assert reader.read().has_older
    store.delete(recorded[STARVED])
    clocks.passed_s += LOOK_AGAIN_S
    assert set(by_id(reader)) == set(recorded.values()) - {recorded[FED], recorded[STARVED]}
    clocks.passed_s += RECENT_S + 60
    assert by_id(reader) == {}
    assert reader.read().has_older


def test_what_is_queued_is_listed_with_what_it_was_made_for(
    store: RunStore, reader: StoreReader, recorded: dict[str, int]
) -> None:
    trial = store.create_run(RunConfig(), group_key="tournament:3", role="a#1")
    anchor = store.create_run(RunConfig(), group_key="headroom:7", role="A")
    listed = by_id(reader)
    assert [listed[each].state for each in (trial, anchor)] == ["queued", "queued"]
    assert listed[trial].name.startswith("tournament 3: ")
    assert listed[anchor].name.startswith("headroom of run 7: ")
    store.update_run(trial, status="done")
    assert set(by_id(reader)) == {anchor, *recorded.values()}, (
        "trials that have ended are their tournament's"
    )


def test_a_run_whose_program_is_gone_does_not_look_as_if_it_went_on(
    store: RunStore, reader: StoreReader
) -> None:
    """The store still says that it runs: who marks it as interrupted writes."""
    gone = store.create_run(RunConfig())
    # no process began at the epoch
    store.update_run(gone, status="running", stage="training", owner_started=0.0)
    row = by_id(reader)[gone]
    assert (row.state, row.live, row.queued) == (GONE, False, False)
    assert math.isnan(row.moment_s)
    assert store.run(gone).status == "running"


def test_a_run_that_only_loads_has_a_speed_and_no_idle_share(
    store: RunStore, reader: StoreReader, recorded: dict[str, int]
) -> None:
    live = running(store, recorded[STARVED])
    config = store.run(live.id).config.to_dict()
    store.update_run(live.id, config={**config, "loader_only": True})
    live.go_on(50)
    row = by_id(reader)[live.id]
    assert (row.answer, row.steps_per_s > 0) == (None, True)


def test_no_step_for_long_is_said(
    store: RunStore, reader: StoreReader, clocks: Clocks, recorded: dict[str, int]
) -> None:
    live = running(store, recorded[STARVED])
    live.go_on(50)
    assert by_id(reader)[live.id].state == "training"
    clocks.passed_s += 30
    assert by_id(reader)[live.id].state == "no step for 30.0 s"
    live.go_on(1)
    assert by_id(reader)[live.id].state == "training"


def test_the_answer_on_a_run_is_what_runs_says(
    store: RunStore, reader: StoreReader, recorded: dict[str, int]
) -> None:
    opened = reader.read(recorded[STARVED])
    assert opened.opened == recorded[STARVED]
    text = "\n".join(opened.answer_lines)
    assert f"run {recorded[STARVED]}: {STARVED} (simulated device)" in text
    for question in ("By what? transforms", "Gain?    up to ", "Fix?     "):
        assert f"  {question}" in text
    failed = "\n".join(reader.read(recorded[FAILED]).answer_lines)
    assert store.run(recorded[FAILED]).error in failed
    assert "there is no run 999" in "\n".join(reader.read(999).answer_lines)


def test_an_answer_is_worked_out_once_while_it_is_open(
    store: RunStore,
    reader: StoreReader,
    recorded: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = Mock(side_effect=store.run)
    first = reader.read(recorded[STARVED])
    monkeypatch.setattr(store, "run", read)
    assert reader.read(recorded[STARVED]).answer_lines == first.answer_lines
    assert not read.called
    reader.read()
    reader.read(recorded[STARVED])
    assert read.called


def test_while_a_run_goes_on_its_answer_is_what_is_known_so_far(
    store: RunStore, reader: StoreReader, recorded: dict[str, int]
) -> None:
    live = running(store, recorded[STARVED])
    assert "training: no figures yet" in reader.read(live.id).answer_lines
    live.go_on(100)
    lines = reader.read(live.id).answer_lines
    idle = rows.idle_in_words(by_id(reader)[live.id])
    assert lines[1].startswith(f"So far: {idle} idle for data, ")
    assert "  Fix?     named when the run has ended" in lines
    assert any(line.startswith(f"  By what? waits for data {idle}") for line in lines)


def test_no_store_is_made_and_one_that_appears_is_read(vitprof_home: Path) -> None:
    with contextlib.closing(StoreReader()) as reader:
        assert (reader.read().rows, reader.read().has_older) == ((), False)
        assert not vitprof_home.exists()
        with contextlib.closing(RunStore()) as store:
            made = store.create_run(RunConfig())
        assert [row.run_id for row in reader.read().rows] == [made]


def test_nothing_is_written(store: RunStore, reader: StoreReader, recorded: dict[str, int]) -> None:
    live = running(store, recorded[STARVED])
    live.go_on(50)
    assert store.file is not None
    # a number that changes with each transaction of another connection that wrote
    with contextlib.closing(sqlite3.connect(store.file)) as db:
        before = db.execute("PRAGMA data_version").fetchone()
        for opened in (None, live.id, recorded[STARVED], None):
            reader.read(opened)
        assert db.execute("PRAGMA data_version").fetchone() == before
        live.go_on(1)
        assert db.execute("PRAGMA data_version").fetchone() != before, "it would show"


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_store_that_vanishes_is_one_line(
    store: RunStore, reader: StoreReader, recorded: dict[str, int], how: str
) -> None:
    reader.read()
    assert store.file is not None
    store.file.rename(store.file.with_name("moved"))
    if how == "replaced":
        store.file.touch()
    with pytest.raises(StoreGoneError, match=f"was {how} while vitprof had it open") as error:
        reader.read()
    assert "\n" not in str(error.value)


def test_a_shared_store_is_read_as_well(
    server: Server,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VITPROF_DB", server.schema())
    with contextlib.closing(StoreReader()) as reader, contextlib.closing(RunStore()) as store:
        recorded = ended(store)
        live = running(store, recorded[STARVED])
        live.go_on(50)
        listed = by_id(reader)
    assert set(listed) == {*recorded.values(), live.id}
    assert listed[live.id].live


N_ENDED = 200
REFRESHES = 20
MOST_FRAC = 0.02
"""Share of a core that refreshes every two seconds may take."""
EVERY_S = 2.0


@pytest.fixture
def busy(store: RunStore, recorded: dict[str, int]) -> Running:
    """A store with 200 runs and one that goes on."""
    run = store.run(recorded[STARVED])
    assert run.verdict is not None
    for _ in range(N_ENDED - len(recorded)):
        made = store.create_run(run.config)
        store.update_run(
            made, status="done", summary=run.summary, verdict=run.verdict.to_dict(), facts=run.facts
        )
    return running(store, recorded[STARVED])


@pytest.mark.measured
def test_a_refresh_costs_little(reader: StoreReader, clocks: Clocks, busy: Running) -> None:
    """Of 200 runs and one that goes on, with new steps each time and all that is drawn."""
    from rich.console import Console

    console = Console(file=open("/dev/null", "w"), width=120, height=50, force_terminal=True)  # noqa: SIM115
    busy.go_on(20)
    reader.read()
    spent_s = 0.0
    for _ in range(REFRESHES):
        busy.go_on(5)
        clocks.passed_s += EVERY_S
        before = resource.getrusage(resource.RUSAGE_SELF)
        snapshot = reader.read()
        lines, _ = drawing.screen(snapshot, View(), "", 120, 50, console)
        console.print(drawing.joined(lines))
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent_s += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    console.file.close()
    assert spent_s / (REFRESHES * EVERY_S) < MOST_FRAC
