"""Ranks travel with their run, and the runs of a job's nodes become one where they are imported."""

import csv
import io
from collections import Counter

import numpy as np
import pyarrow.parquet as pq

from tests.export.test_bundle import other  # noqa: F401
from tests.store.test_nodes import MET, N, made
from vitprof.export import tables
from vitprof.export.bundle import bundle_bytes, import_bundle
from vitprof.store import RunStore


def test_all_ranks_come_out_as_they_went_in(store: RunStore, other: RunStore) -> None:  # noqa: F811
    run_id = made(store, 0)
    came = import_bundle(other, io.BytesIO(bundle_bytes(store, [run_id])))
    sent, found = (
        of.steps_of_ranks(each) for of, each in ((store, run_id), (other, came.runs[0].run_id))
    )
    assert sorted(found) == [0, 1]
    for rank in found:
        for name, values in sent[rank].items():
            np.testing.assert_allclose(
                found[rank][name], values, atol=1e-8, err_msg=name
            )  # whole nanoseconds
    assert other.n_steps(came.runs[0].run_id) == N, "the run's own steps are those of rank 0"


def test_nodes_with_stores_of_their_own_are_joined_where_they_are_imported(
    store: RunStore,
    other: RunStore,  # noqa: F811
) -> None:
    whole, part = made(other, 0, **MET), made(store, 2, host="b", ahead_s=77.0, **MET)
    came = import_bundle(other, io.BytesIO(bundle_bytes(store, [part])))
    line = f"1 imported run is a part of another; run {whole} has the ranks of 2 commands"
    assert (came.sentence, came.runs) == (line, ())
    assert [run.id for run in other.runs()] == [whole]
    series = other.steps_of_ranks(whole)
    assert sorted(series) == [0, 1, 2, 3]
    assert abs(series[2]["t_start_s"][0] - series[0]["t_start_s"][0]) < 0.01
    assert [node["ranks"] for node in other.run(whole).facts["nodes"]] == [[0, 1], [2, 3]]
    assert import_bundle(other, io.BytesIO(bundle_bytes(store, [part]))).sentence == line, (
        "a second time"
    )
    assert [run.id for run in other.runs()] == [whole]
    assert {
        rank: len(steps["step"]) for rank, steps in other.steps_of_ranks(whole).items()
    } == dict.fromkeys(range(4), N)
    n_steps = {rank: len(steps["step"]) for rank, steps in other.steps_of_ranks(whole).items()}
    assert n_steps == dict.fromkeys(range(4), N)
    assert len(other.run(whole).facts["nodes"]) == 2


def test_tables_of_steps_have_the_rows_of_all_ranks(store: RunStore) -> None:
    run = store.run(made(store, 0))
    text, table = io.BytesIO(), io.BytesIO()
    tables.write_steps_csv(store, [run], text)
    tables.write_steps_parquet(store, [run], table)
    rows = list(csv.DictReader(text.getvalue().decode().splitlines()))
    assert Counter(row["rank"] for row in rows) == {"0": N, "1": N}
    of_parquet = pq.read_table(table).to_pylist()
    assert [(row["rank"], row["step"]) for row in of_parquet] == [
        (int(r["rank"]), int(r["step"])) for r in rows
    ]


def test_who_imports_a_run_is_asked_where_no_id_says_that_it_is_of_a_job(
    store: RunStore,
    other: RunStore,  # noqa: F811
) -> None:
    whole, part = made(other, 0), made(store, 2, host="b", began_unix_s=1e9 + 4)
    file = bundle_bytes(store, [part])
    came = import_bundle(other, io.BytesIO(file))
    (run,) = came.runs
    assert [(each.run_id, each.whole_id) for each in came.possible] == [(run.run_id, whole)]
    assert sorted(each.id for each in other.runs()) == [whole, run.run_id]
    again = import_bundle(other, io.BytesIO(file), join_unsure=True)
    doubt = "that they are of one job is not sure: their address and port are the same, and they began 4.00 s apart"
    assert doubt in again.sentence
    assert again.possible == ()
    assert [each.id for each in other.runs()] == [whole]
    assert sorted(other.steps_of_ranks(whole)) == [0, 1, 2, 3]
    assert doubt in other.run(whole).notices[-1]
