"""Counters of runs: the sums of their steps, of new ones only, never falling, and absent where nothing is known."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client.exposition import generate_latest

from tests import ROOT
from tests.series import made_steps
from vitprof.analysis.timing.gaps import find_gaps
from vitprof.config import RunConfig
from vitprof.export import metrics
from vitprof.export.metrics import RunCollector, registry_of
from vitprof.recording.columns import Phase
from vitprof.store import RunStore
from vitprof.store.chunks import Chunk, chunks_of

N = 200
GRAFANA = ROOT / "docs" / "grafana"


@pytest.fixture
def store(vitprof_home: Path) -> Any:
    store = RunStore()
    yield store
    store.close()


def some_steps(**columns: Any) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return made_steps(
        random.random(N) * 0.01, random.random(N) * 0.01, h2d=0.001, warmup=5, host_s=0.0, **columns
    )


def started(store: RunStore, **values: Any) -> int:
    run_id = store.create_run(RunConfig(device="cpu"))
    store.update_run(run_id, status="running", t_origin_s=1.0, **values)
    return run_id


def add(
    store: RunStore, run_id: int, steps: dict[str, np.ndarray], first: int, last: int, rank: int = 0
) -> None:
    part = {name: values[first:last] for name, values in steps.items()} | {
        "rank": np.full(last - first, float(rank))
    }
    store.record(run_id, chunks_of("ranks" if rank else "steps", part))


def scraped(collector: RunCollector, name: str) -> dict[str, float]:
    """Returns the samples of a metric by their labels."""
    found = re.findall(
        rf"^vitprof_{name}{{(.*)}} (\S+)$",
        generate_latest(registry_of(collector)).decode(),
        re.MULTILINE,
    )
    return {labels: float(value) for labels, value in found}


def test_counters_are_the_sums_of_all_steps_whatever_they_are_stored_as(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over scrapes between which steps come, chunks are merged and the run ends; a scrape reads no step again."""
    steps = some_steps(read_s=0.002)
    run_id, collector = (
        started(store, environment={"hostname": "n1", "job_id": "7"}),
        RunCollector(store),
    )
    label = f'job_id="7",node="n1",rank="0",run="{run_id}"'
    before = dict.fromkeys(("data_wait_s", "exposed_wait_s", "gap_s"), -1.0)
    counters = {
        "data_wait_s": "data_wait",
        "exposed_wait_s": "exposed_wait",
        "gap_s": "device_idle",
    }
    assert scraped(collector, "steps_total") == {label: 0.0}
    assert not scraped(collector, "data_wait_seconds_total")
    read, reading = [], Chunk.read
    monkeypatch.setattr(
        Chunk, "read", lambda self, names=None: read.append(self.rows) or reading(self, names)
    )
    for first in range(0, N, 20):
        add(store, run_id, steps, first, first + 20)
        if first == 100:
            store.compact(run_id)
        for column, name in counters.items():
            (value,) = scraped(collector, f"{name}_seconds_total").values()
            assert value == pytest.approx(steps[column][: first + 20].sum(), abs=1e-6)
            assert value > before[column]
            before[column] = value
    assert sum(read) == N + 100, "what is new, and once all before it: they had become one chunk"
    store.update_run(run_id, status="done")
    store.compact(run_id)
    store.mark_warmup(run_id, [50])
    for collects in (collector, RunCollector(store)):  # also one that begins anew
        assert scraped(collects, "steps_total") == {label: N}
        assert scraped(collects, "samples_total") == {label: 10.0 * N}
        stages = scraped(collects, "stage_seconds_total")
        assert {key.rpartition("=")[2]: round(s, 6) for key, s in stages.items()} == {
            '"read"': 0.4,
            '"transfer"': 0.2,
        }
        for column, name in counters.items():
            (value,) = scraped(collects, f"{name}_seconds_total").values()
            assert value == pytest.approx(before[column], abs=1e-6)
    (info,) = scraped(collector, "run_info")
    assert 'status="done"' in info
    assert 'simulated="false"' in info


def test_parts_of_compute_are_summed_where_they_are_known(store: RunStore) -> None:
    is_marked = np.arange(N) % 4 == 0
    steps = some_steps()
    for name, share in (("forward", 0.25), ("backward", 0.5), ("optimizer", 0.125)):
        part_s = share * steps["compute_s"]
        steps[f"{name}_compute_s"] = np.where(is_marked, part_s, np.nan)
    # a step that the scaler skipped: it has the forward pass alone
    steps["forward_compute_s"][1] = 1.0
    run_id, collector = started(store), RunCollector(store)
    for first in range(0, N, 50):
        add(store, run_id, steps, first, first + 50)
        found = scraped(collector, "compute_part_seconds_total")
    sums = {re.search('part="(.*?)"', key)[1]: value for key, value in found.items()}  # type: ignore[index]
    marked_s = steps["compute_s"][is_marked].sum()
    shares = {"forward": 0.25, "backward": 0.5, "optimizer": 0.125, "other": 0.125}
    expected = {name: share * marked_s for name, share in shares.items()}
    assert sums == pytest.approx(expected, abs=1e-6)


def test_evaluations_are_no_idle_time_and_parts_add_up_to_the_whole(store: RunStore) -> None:
    steps = some_steps(pause=0.01)
    steps["gap_s"][1:] += 0.01  # the device idled meanwhile
    at_s = float(steps["t_start_s"][101])
    phases = (Phase("evaluate", at_s - 0.009, at_s - 0.001),)
    run_id, collector = started(store, phases=phases), RunCollector(store)
    for first in range(0, N, 10):
        add(store, run_id, steps, first, first + 10)
        (idle,) = scraped(collector, "device_idle_seconds_total").values()
    assert idle == pytest.approx(find_gaps(steps, phases).idle_ns / 1e9, abs=1e-6)
    assert idle == pytest.approx(steps["gap_s"].sum() - 0.008, abs=1e-6)


def test_each_rank_has_its_own(store: RunStore) -> None:
    steps = some_steps()
    run_id, collector = started(store, environment={"world_size": 2}), RunCollector(store)
    add(store, run_id, steps, 0, N)
    for first, last in (0, 30), (30, 50):  # the other one is slower
        add(store, run_id, steps, first, last, rank=1)
        found = scraped(collector, "data_wait_seconds_total")
        sums = {re.search('rank="(.)"', key)[1]: value for key, value in found.items()}  # type: ignore[index]
        assert sums == pytest.approx(
            {"0": steps["data_wait_s"].sum(), "1": steps["data_wait_s"][:last].sum()}, abs=1e-6
        )


@pytest.mark.parametrize(
    ("facts", "nan", "absent"),
    [
        ({}, "compute_s", {"device_idle"}),
        ({}, "data_wait_s", {"data_wait"}),
        ({"several_threads_train": True}, "", {"data_wait", "exposed_wait", "device_idle"}),
        ({"side_stream_steps": 100}, "", {"data_wait", "exposed_wait", "device_idle"}),
        ({"forked_process_trains": True, "partly_watched": "gone"}, "", set()),
    ],
)
def test_what_is_not_known_is_absent(
    store: RunStore, facts: dict[str, Any], nan: str, absent: set[str]
) -> None:
    steps = some_steps(**({nan: np.nan} if nan else {}))
    add(store, started(store, facts=facts), steps, 0, N)
    collector = RunCollector(store)
    assert not scraped(collector, "compute_part_seconds_total")
    known = ("data_wait", "exposed_wait", "device_idle")
    assert {name for name in known if not scraped(collector, f"{name}_seconds_total")} == absent
    assert len(scraped(collector, "steps_total")) == 1
    steps["samples"][:] = 0  # a script without a loader: nobody counts them
    add(store, started(store), steps, 0, N)
    assert len(scraped(collector, "samples_total")) == 1


def test_a_run_is_listed_until_an_hour_after_its_end_and_one_that_goes_on_unwatched_is_called_so(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = metrics.now_s()
    monkeypatch.setattr(metrics, "now_s", lambda: now)
    run_id, unwatched = started(store), started(store, stage="unwatched")
    store.update_run(started(store), status="queued")
    collector = RunCollector(store)
    infos = scraped(collector, "run_info")
    assert {re.search('run="(.*?)".*status="(.*?)"', key).groups() for key in infos} == {  # type: ignore[union-attr]
        (str(run_id), "running"),
        (str(unwatched), "unwatched"),
    }
    store.update_run(run_id, status="done")
    for seconds, n in (0, 2), (3500, 2), (3700, 1), (3800, 1):
        monkeypatch.setattr(metrics, "now_s", lambda seconds=seconds: now + seconds)
        assert len(scraped(collector, "steps_total")) == n, seconds


def test_a_store_that_cannot_be_read_has_no_runs_and_says_so(store: RunStore) -> None:
    add(store, started(store), some_steps(), 0, N)
    collector = RunCollector(store)
    with store.transaction() as db:
        db.exec_driver_sql("ALTER TABLE series RENAME TO gone")
    text = generate_latest(registry_of(collector)).decode()
    assert "vitprof_store_up 0.0" in text
    assert "run=" not in text
    assert "no such table" in collector.failure
    with store.transaction() as db:
        db.exec_driver_sql("ALTER TABLE gone RENAME TO series")
    assert len(scraped(collector, "steps_total")) == 1


def test_the_board_and_the_alerts_name_what_there_is(store: RunStore) -> None:
    add(store, started(store), some_steps(read_s=0.001), 0, N)
    text = generate_latest(registry_of(RunCollector(store))).decode()
    there = set(re.findall(r"^(vitprof_\w+)", text, re.MULTILINE))
    board = json.loads((GRAFANA / "vitprof-dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    (group,) = yaml.safe_load((GRAFANA / "vitprof-alerts.yml").read_text())["groups"]
    queries += [rule["expr"] for rule in group["rules"]]
    assert len(queries) == 10
    assert set(re.findall(r"vitprof_\w+", " ".join(queries))) <= there
