"""Tournaments: what a spec allows, which trials it makes, in which order, and what the store keeps."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from vitprof.config import RunConfig
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError, JobError, StoreError
from vitprof.experiments.tournament import planning
from vitprof.experiments.tournament.planning import plan, schedule
from vitprof.store import RunStore, tournaments
from vitprof.store.schema import tournaments as store_table

BASE = RunConfig(device="simulated:2,10", threads=1, steps=10, seed=7)


def made(**values: Any) -> TournamentSpec:
    return TournamentSpec(**({"base": BASE, "strategies": ("memory", "workers"), "batch_sizes": (32, 64)} | values))


def keys(**values: Any) -> list[str]:
    return [t.key for t in plan(made(**values))]


class TestSpec:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("strategies", ()),
            ("strategies", ("nonsense",)),
            ("strategies", ("memory", "memory")),
            ("strategies", "memory"),
            ("strategies", (["memory"],)),
            ("baseline", 3),
            ("early_stop", "no"),
            ("batch_sizes", (0,)),
            ("batch_sizes", (True,)),
            ("batch_sizes", (32, 32)),
            ("batch_sizes", tuple(range(1, 502))),
            ("workers", (-1,)),
            ("workers", ("2",)),
            ("page_caches", ("lukewarm",)),
            ("repeats", 0),
            ("repeats", 101),
            ("seconds", 0.0),
            ("seconds", float("inf")),
        ],
    )
    def test_what_it_refuses(self, field: str, value: Any) -> None:
        with pytest.raises(ConfigError) as caught:
            made(**{field: value})
        assert caught.value.field == field
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(("field", "value"), [("loader", "threads"), ("replay", "host")])
    def test_what_the_base_must_leave_out(self, field: str, value: str) -> None:
        with pytest.raises(ConfigError) as caught:
            made(base=dataclasses.replace(BASE, **{field: value}))
        assert caught.value.field == field

    def test_through_json_and_back(self) -> None:
        spec = made(workers=(0, 2), page_caches=("warm", "cold"), seconds=60.0, baseline="memory/b32/w-/as-is")
        assert TournamentSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec

    @pytest.mark.parametrize(
        "broken", [{"colour": "red"}, {"base": 3}, {"strategies": None}, {"base": {"colour": "red"}}]
    )
    def test_what_cannot_be_read(self, broken: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            TournamentSpec.from_dict(made().to_dict() | broken)

    def test_something_is_missing(self) -> None:
        with pytest.raises(ConfigError, match="strategies"):
            TournamentSpec.from_dict({"base": BASE.to_dict(), "batch_sizes": [1]})


class TestPlan:
    def test_every_combination(self) -> None:
        assert keys() == ["memory/b32/w-/as-is", "memory/b64/w-/as-is", "workers/b32/w2/as-is", "workers/b64/w2/as-is"]

    def test_workers_only_where_a_strategy_takes_them(self) -> None:
        assert keys(workers=(0, 1), batch_sizes=(32,)) == [
            "memory/b32/w-/as-is",
            "workers/b32/w0/as-is",
            "workers/b32/w1/as-is",
        ]

    def test_jobs_are_resolved_and_alike(self) -> None:
        for trial in plan(made(workers=(1,))):
            assert (trial.config.seed, trial.config.steps, trial.config.device) == (7, 10, "simulated:2,10")
            assert trial.config.loader is not None
            assert trial.key.startswith(f"{trial.config.strategy}/b{trial.config.batch_size}/")

    def test_what_is_refused_stays_with_its_reason(self) -> None:
        planned = plan(made(strategies=("memory", "dali"), batch_sizes=(32, 70_000)))
        assert len(planned) == 4
        why = {t.key: t.refused for t in planned}
        assert why["memory/b32/w-/as-is"] == ""
        assert "60000 samples" in why["memory/b70000/w-/as-is"]
        assert "cannot load digits" in why["dali/b32/w2/as-is"]

    def test_samples_in_memory_have_no_page_cache(self) -> None:
        planned = plan(made(strategies=("memory",), batch_sizes=(32,), page_caches=("as-is", "warm", "cold")))
        assert [(t.key, bool(t.refused)) for t in planned] == [
            ("memory/b32/w-/as-is", False),  # warm is the same
            ("memory/b32/w-/cold", True),
        ]

    def test_a_reason_of_this_machine(self) -> None:
        planned = plan(made(), lambda config: "no room" if config.batch_size == 64 else "")
        assert [t.refused for t in planned] == ["", "no room", "", "no room"]

    def test_shared_settings_go_where_they_are_taken(self) -> None:
        base = dataclasses.replace(BASE, prefetch_factor=7)
        by_key = {t.key: t for t in plan(made(base=base, batch_sizes=(32,)))}
        assert by_key["workers/b32/w2/as-is"].config.prefetch_factor == 7
        assert by_key["memory/b32/w-/as-is"].config.prefetch_factor is None

    def test_the_baseline(self) -> None:
        spec = made(strategies=("dali", "memory"))
        assert planning.baseline_of(spec, plan(spec)) == "memory/b32/w-/as-is"
        spec = made(baseline="workers/b64/w2/as-is")
        assert planning.baseline_of(spec, plan(spec)) == "workers/b64/w2/as-is"
        with pytest.raises(ConfigError, match="no such trial"):
            plan(made(baseline="memory/b9/w-/as-is"))

    @pytest.mark.parametrize("repeats", [1, 2, 3, 4])
    def test_rounds(self, repeats: int) -> None:
        planned = plan(made(strategies=("memory", "workers", "dali")))
        turns = list(schedule(planned, repeats))
        assert [number for number, _ in turns] == [r for r in range(1, repeats + 1) for _ in range(4)]
        assert set(Counter(t.key for _, t in turns).values()) == {repeats}
        assert not [t for _, t in turns if t.refused]
        assert len({turns[4 * r][1].key for r in range(repeats)}) == repeats  # each round begins elsewhere

    def test_roles(self) -> None:
        assert planning.read_role(planning.role_of("memory/b32/w-/as-is", 3)) == ("memory/b32/w-/as-is", 3)
        assert planning.read_role("nonsense")[1] == 0


class TestStored:
    def test_kept_and_found(self, store: RunStore) -> None:
        first = planning.create_tournament(store, made())
        second = planning.create_tournament(store, made(repeats=1), name="mine")
        assert [t.id for t in tournaments.list_tournaments(store)] == [second, first]
        found = tournaments.tournament(store, first)
        assert (found.spec, found.status, found.held) == (made(), "queued", False)
        assert found.name == "2 strategies x 2 batch sizes on digits"
        assert found.created_utc.endswith("Z")
        assert tournaments.tournament(store, second).name == "mine"

    def test_a_bad_one_is_not_kept(self, store: RunStore) -> None:
        with pytest.raises(ConfigError):
            planning.create_tournament(store, made(baseline="nonsense"))
        with pytest.raises(ConfigError):
            planning.create_tournament(store, made(), name="x" * 201)
        assert tournaments.list_tournaments(store) == []

    @pytest.mark.parametrize("number", [0, -1, 5, 2**70])
    def test_there_is_none(self, store: RunStore, number: int) -> None:
        with pytest.raises(StoreError, match=f"no tournament {number}"):
            tournaments.tournament(store, number)

    def test_two_who_change_the_state_at_once(self, store: RunStore) -> None:
        number = planning.create_tournament(store, made())

        def change(name: str) -> None:
            for k in range(20):
                tournaments.set_status(store, number, "running", **{f"{name}-{k}": k})

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(change, ("refused", "cut")))
        with store.transaction() as db:
            state = db.execute(sa.select(store_table.c.state)).scalar_one()
        assert len(state) == 40

    def test_one_program_at_a_time(self, store: RunStore) -> None:
        number = planning.create_tournament(store, made())
        assert tournaments.claim(store, number).status == "running"
        with pytest.raises(JobError, match="at work already"):
            tournaments.claim(store, number)
        tournaments.set_status(store, number, "paused", owner=None, note="coffee")
        found = tournaments.tournament(store, number)
        assert (found.status, found.note, found.held, found.resumable) == ("paused", "coffee", False, True)
        assert tournaments.claim(store, number).note == ""

    def test_one_whose_program_is_gone(self, store: RunStore) -> None:
        number = planning.create_tournament(store, made())
        owner = tournaments.claim(store, number).holder_pid
        assert owner is not None
        with store.transaction() as db:
            state = db.execute(sa.select(store_table.c.state)).scalar_one()
        gone = {**state["owner"], "started": 1.0}  # the process with this number is another one now
        tournaments.set_status(store, number, "running", owner=gone)
        found = tournaments.tournament(store, number)
        assert (found.status, found.held, found.note) == ("paused", False, "the program that ran it ended")
        assert tournaments.claim(store, number).status == "running"

    def test_of_another_machine_it_can_be_taken_over_by_a_person(self, store: RunStore) -> None:
        number = planning.create_tournament(store, made())
        tournaments.claim(store, number)
        with pytest.raises(JobError, match="at work here"):
            tournaments.release(store, number)
        tournaments.set_status(store, number, "running", owner={"host": "box-1", "pid": 7, "started": 1.0})
        run_id = store.create_run(BASE, group_key=f"tournament:{number}", role="memory/b32/w-/as-is#1")
        store.update_run(run_id, status="running", owner_host="box-1")
        for act, error in ((tournaments.claim, JobError), (tournaments.delete_tournament, StoreError)):
            with pytest.raises(error, match=r"another machine \(box-1"):
                act(store, number)
        tournaments.release(store, number)
        found = tournaments.tournament(store, number)
        assert (found.status, found.held, found.note) == ("paused", False, "taken over from box-1")
        assert store.run(run_id).status == "interrupted"
        assert tournaments.claim(store, number).status == "running"

    def test_of_another_version(self, store: RunStore) -> None:
        number = planning.create_tournament(store, made())
        other = planning.create_tournament(store, made())
        with store.transaction() as db:
            db.execute(sa.update(store_table).where(store_table.c.id == number).values(spec={"colour": "red"}))
        with pytest.raises(StoreError, match="another version"):
            tournaments.tournament(store, number)
        assert [t.id for t in tournaments.list_tournaments(store)] == [other]

    def test_deleted_with_its_runs(self, store: RunStore) -> None:
        number = planning.create_tournament(store, made())
        mine = store.create_run(BASE, group_key=f"tournament:{number}", role="memory/b32/w-/as-is#1")
        other = store.create_run(BASE)
        store.update_run(mine, status="done")
        tournaments.claim(store, number)
        with pytest.raises(StoreError, match="at work"):
            tournaments.delete_tournament(store, number)
        tournaments.set_status(store, number, "stopped", owner=None)
        tournaments.delete_tournament(store, number)
        assert tournaments.list_tournaments(store) == []
        assert [r.id for r in store.runs()] == [other]
