"""Chunks keep what was measured, in a form that names its columns."""

import math
import subprocess
import sys

import numpy as np
import pytest

from tests.jobs.reported import step_columns, steps
from tests.stored_series import append_steps, append_telemetry
from vitprof.config import RunConfig
from vitprof.recording.columns import STEP_COLUMNS, TELEMETRY_COLUMNS
from vitprof.store import RunStore
from vitprof.store.chunks import COLUMNS, MOST_ROWS, as_table, chunks_of, columns_of, joined, loaded

RNG = np.random.default_rng(1)
SERIES = {
    "rank": np.zeros(9),
    "step": np.arange(9.0),
    "t_start_s": np.round(86_400 * 300 * 1e9 + np.cumsum(RNG.integers(1, 10**9, 9))) / 1e9,
    "compute_s": RNG.exponential(1e-3, 9),
    "host_s": np.array([math.nan, *range(8)]),
    "loss": np.array([math.nan, -math.inf, *RNG.normal(size=7)]),
    "decode_s": np.full(9, 1e300),
    "teleport_s": np.linspace(0, 1, 9),
    "watts_per_s": np.linspace(0, 1e-12, 9),
}


def test_a_large_chunk_keeps_moments_to_the_nanosecond_and_the_rest_bit_for_bit() -> None:
    (small,), (large,) = (list(chunks_of("steps", SERIES, merge=merge)) for merge in (False, True))
    assert (small.merged, large.merged) == (False, True)
    for chunk in (small, large):
        read = chunk.read()
        assert list(read) == list(SERIES), "without what has no value"
        for name, values in SERIES.items():
            exact = (
                not chunk.merged or not name.endswith("_s") or name in ("decode_s", "watts_per_s")
            )
            np.testing.assert_allclose(
                read[name], values, rtol=0, atol=0 if exact else 5.1e-10, err_msg=name
            )
        assert loaded("steps", chunk.data) == chunk
        assert (chunk.first, chunk.last, chunk.rows, chunk.rank) == (0, 8, 9, 0)
    ticks = (
        np.round(SERIES["t_start_s"] * 1e9) / 1e9
    )  # what a clock of nanoseconds can say comes back as it was
    (exact,) = chunks_of("steps", {**SERIES, "t_start_s": ticks}, merge=True)
    np.testing.assert_array_equal(exact.read(["t_start_s"])["t_start_s"], ticks)
    assert list(large.read(["loss", "gone"])) == ["loss"]
    whole = joined("steps", [large.read()])
    assert list(whole) == [*STEP_COLUMNS, "teleport_s", "watts_per_s"]
    assert np.isnan(whole["worker"]).all()


def test_chunks_are_in_order_bounded_and_of_one_rank() -> None:
    n = MOST_ROWS + 5
    backwards = {"step": np.arange(n)[::-1].astype(float), "rank": np.arange(n)[::-1] % 2.0}
    chunks = list(chunks_of("steps", backwards, merge=True))
    assert [(c.rank, c.rows) for c in chunks] == [(0, n // 2 + 1), (1, n // 2)]
    assert [c.rows for c in chunks_of("steps", {"step": backwards["step"]}, merge=True)] == [
        MOST_ROWS,
        5,
    ]
    assert joined("steps", [c.read() for c in chunks], ["step"])["step"].tolist() == list(range(n))
    assert list(chunks_of("steps", {"step": np.empty(0)})) == []


def test_rows_for_other_programs_of_another_length_and_what_is_no_chunk() -> None:
    for data in (b"", b"PAR1", b"PAR1" + bytes(99), b"nonsense" * 99):
        with pytest.raises(ValueError, match=r"^damaged steps: "):
            loaded("steps", data)
    with pytest.raises(ValueError, match="a row needs 2 values: a, b"):
        columns_of([[1.0, 2.0, 3.0]], ("a", "b"))
    assert {name: v.tolist() for name, v in columns_of([], ("a", "b")).items()} == {
        "a": [],
        "b": [],
    }
    table = as_table(
        {"step": np.arange(3.0), "loss": np.array([math.nan, math.inf, 1.0])}, {"step"}
    )
    assert table.to_pydict() == {"step": [0, 1, 2], "loss": [None, None, 1.0]}


@pytest.mark.parametrize("compacted", [False, True])
def test_steps_are_marked_and_added_again_in_either_form(store: RunStore, compacted: bool) -> None:
    run_id, other = store.create_run(RunConfig()), store.create_run(RunConfig())
    for first in range(0, 50, 10):
        append_steps(store, run_id, steps(first, 10))
        append_telemetry(store, run_id, first, np.ones((10, len(TELEMETRY_COLUMNS))))
    append_steps(store, other, steps(0, 10))
    if compacted:
        store.compact(run_id, all_of_it=False)
        store.compact(run_id)
        store.compact(run_id)
    store.mark_warmup(run_id, [])
    store.mark_warmup(run_id, [9, 10, 31, 999])
    append_steps(store, run_id, steps(45, 10), again=True)
    store.record(run_id, list(chunks_of("steps", step_columns(50, 5))) * 2, again=True)
    found = store.steps(run_id)
    assert found["step"].tolist() == list(range(55))
    assert np.flatnonzero(found["warmup"]).tolist() == [9, 10, 31]
    np.testing.assert_allclose(
        found["t_start_s"], steps(0, 55)[:, STEP_COLUMNS.index("t_start_s")], atol=1e-9
    )
    assert (store.n_steps(run_id), store.n_steps(other)) == (55, 10)
    assert not store.steps(other)["warmup"].any()
    assert store.telemetry(run_id)["seq"].tolist() == list(range(50))
    assert store.steps(run_id, after=8, until=11, names=("warmup",))["warmup"].tolist() == [1, 1, 0]


def test_many_small_chunks_become_one_and_batches_are_whole(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitprof.store.chunks.MOST_CHUNKS", 3)
    run_id = store.create_run(RunConfig())
    for first in range(4):
        append_steps(store, run_id, steps(first, 1))
        store.compact(run_id, all_of_it=False)
    with pytest.raises(Exception, match="nonsense"):
        store.record(run_id, chunks_of("steps", step_columns(4, 3)), {"nonsense": 1})
    with store.transaction() as db:
        rows = db.exec_driver_sql(
            "select chunk, rows, merged from series order by chunk"
        ).fetchall()
    assert rows == [(0, 3, 1), (3, 1, 0)]


def test_a_column_that_only_another_version_knows_is_kept(store: RunStore) -> None:
    run_id = store.create_run(RunConfig())
    append_steps(store, run_id, steps(0, 3))
    unknown = {"step": np.arange(3.0, 6.0), "teleport_s": np.ones(3)}
    store.record(run_id, chunks_of("steps", unknown), {"note": "mine"})
    store.compact(run_id)
    assert store.step_names(run_id) == (*STEP_COLUMNS, "teleport_s")
    found = store.steps(run_id)
    assert list(found) == [*STEP_COLUMNS, "teleport_s"]
    assert found["teleport_s"][3:].tolist() == [1, 1, 1]
    assert np.isnan(found["teleport_s"][:3]).all()
    assert store.run(run_id).note == "mine"
    assert COLUMNS["steps"] == STEP_COLUMNS


def test_steps_are_written_merged_and_read_without_pandas_and_without_threads() -> None:
    """pandas takes 0.4 s to import, in the middle of a watched training. A process that ends while Arrow
    starts a thread is aborted.
    """
    script = (
        "import os, sys, numpy as np\n"
        "def threads():\n"
        "    return len([t for t in os.listdir('/proc/self/task')\n"
        "        if open(f'/proc/self/task/{t}/comm').read().strip() != 'jemalloc_bg_thd'])\n"
        "from vitprof.recording.columns import STEP_COLUMNS\n"
        "from vitprof.store import chunks\n"
        "rows = {name: np.arange(50) / 7 for name in STEP_COLUMNS} | {'step': np.arange(50.0), 'rank': np.zeros(50)}\n"
        "(written,) = chunks.chunks_of('steps', rows)\n"
        "before = threads()\n"
        "(merged,) = chunks.merge([written])\n"
        "assert merged.merged and not written.merged\n"
        "assert merged.read()['loss'].sum() == written.read()['loss'].sum() == rows['loss'].sum()\n"
        "assert threads() == before\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
