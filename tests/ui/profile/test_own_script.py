"""Pages of a run that was a user's own script: all that was measured, and nothing that would start it again."""

import dataclasses
import math
from pathlib import Path

import pytest

from tests.stored_series import append_telemetry
from tests.traces.written import trained_on_gpu
from tests.ui.dashboard import add_run, app, charts, said
from tests.ui.tournaments import add_script_tournament
from vitprof.config.own_script import OwnScript, own_config, with_loader
from vitprof.jobs.trace_runs import add_trace
from vitprof.program import from_anywhere
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunStore
from vitprof.store.tournaments import set_status

TOLD = {
    "device": "cpu",
    "watched": {"dataset": "Samples", "batch_size": 16, "num_workers": 2, "start_method": "spawn"},
}

TRIED = {
    "kind": "input-bound",
    "sentence": "Input-bound. Try setting num_workers=9 in the DataLoader.",
    "advice": [
        {
            "settings": {},
            "words": "setting num_workers=9 in the DataLoader",
            "reason": "",
            "arguments": {"num_workers": 9},
        }
    ],
    "simulated": False,
}


@pytest.fixture
def run_id(store: RunStore) -> int:
    made = add_run(store, name="python train.py")
    store.update_run(
        made, config=with_loader(own_config("python train.py"), TOLD), environment=TOLD
    )
    return made


def test_what_a_script_says_of_its_loader_is_in_the_settings_where_it_fits(
    store: RunStore, run_id: int
) -> None:
    config = store.run(run_id).config
    assert (config.dataset, config.batch_size, config.workers, config.start_method) == (
        "Samples",
        16,
        2,
        "spawn",
    )
    assert dataclasses.replace(config, name="") == with_loader(own_config(""), TOLD)
    told = {
        "watched": {
            "batch_size": 0,
            "num_workers": 10**9,
            "start_method": "other",
            "pin_memory": True,
        }
    }
    config = with_loader(own_config("x" * 300), told)
    assert (config.batch_size, config.workers, config.start_method, config.pin_memory) == (
        1,
        None,
        None,
        True,
    )
    assert len(config.name) == 200


def test_profile_and_compare(store: RunStore, run_id: int) -> None:
    assert not app("compare", runs=f"{run_id},{add_run(store, strategy='memory')}").error
    at = app(run=str(run_id), tab="Tomorrow")  # a tab that there is not
    assert at.session_state["tab"] == "Answer"
    assert not at.warning
    assert not at.error
    assert "Run again" not in [button.label for button in at.button]
    assert not at.sidebar.children, "settings of vitprof's own jobs have no part in it"
    assert [tab.label for tab in at.tabs] == ["Answer", "Timeline", "Loading", "Export"]
    assert "Data set Samples, trained on" in said(at)
    assert "a script of your own" in said(at)
    assert not at.code
    store.update_run(run_id, facts={"command": "/venv/bin/python train.py"})
    assert [c.value for c in app(run=str(run_id)).code] == [
        f"{from_anywhere()} watch -- /venv/bin/python train.py"
    ]
    store.update_run(run_id, environment={"cpu_count": 8})
    assert (
        app(run=str(run_id))
        .code[1]
        .value.endswith(" --vary workers=0,4,8 -- /venv/bin/python train.py")
    )
    store.update_run(run_id, verdict=TRIED)
    assert (
        app(run=str(run_id))
        .code[1]
        .value.endswith(" --vary workers=0,4,8,9 -- /venv/bin/python train.py")
    )


def test_a_tournament_that_has_run_is_offered_as_one_to_run_again(
    store: RunStore, run_id: int
) -> None:
    command = ("/venv/bin/python", "train.py")
    facts = {"command": " ".join(command), "directory": "/work"}
    store.update_run(run_id, facts=facts, environment={"cpu_count": 2})
    offer = "Settings of its DataLoader against each other"
    fewer = OwnScript(command, "/work", (("workers", (0, 1)),))
    add_script_tournament(store, fewer, {})
    whole = OwnScript(command, "/work", (("workers", (0, 1, 4)),))
    number = add_script_tournament(store, whole, {}, status="paused")
    assert offer in said(app(run=str(run_id)))
    set_status(store, number, "done")
    at = app(run=str(run_id))
    assert offer not in said(at)
    assert f"Tournament {number} has compared these settings of its DataLoader" in said(at)
    assert "To run it again" in said(at)
    assert at.code[1].value.endswith(" --vary workers=0,1,4 -- /venv/bin/python train.py")


def test_transforms_and_headroom_of_a_run_that_has_them(store: RunStore, run_id: int) -> None:
    new, kept = (
        {"steps": 10, "step_s": s, "compute_s": 0.5, "data_wait_s": s - 0.5} for s in (1.5, 0.5)
    )
    store.update_run(run_id, facts={"replay": {str(i): kept if i % 2 else new for i in range(8)}})
    words = said(app(run=str(run_id)))
    assert "with free data the steps of this loop would run 3.00x as fast" in words
    assert "measured" in words
    assert "Transforms" not in [
        header.value for header in app(run=str(run_id), tab="Loading").header
    ]
    told = {
        "Crop": {"s_per_sample": 0.003, "calls": 9},
        "<lambda>": {"s_per_sample": 0.001, "calls": 9},
    }
    store.update_run(run_id, facts={"transforms": told})
    at = app(run=str(run_id), tab="Loading")
    assert "Transforms" in [header.value for header in at.header]
    assert "Crop takes 75% of the time in transforms, 3.00 ms a sample." in said(at)
    assert (
        charts(at)["transform-bars"]["alt"]
        == "Mean time of each transform for a sample: Crop 75%, <lambda> 25%."
    )


HANDED_OVER = {
    "tensors": 16,
    "bytes": 2048,
    "dtypes": {"float32": 12, "int64": 4},
    "storages": 8,
    "descriptor_limit": 1024,
    "sharing": "file_descriptor",
    "start_method": "spawn",
}


def test_how_batches_cross_from_workers_is_a_table(store: RunStore, run_id: int) -> None:
    header = "From the workers to the training"
    at = app(run=str(run_id), tab="Loading")
    assert header not in [each.value for each in at.header]
    crossing = {
        "pickle_s": 0.009,
        "pickle_cpu_s": 0.008,
        "unpickle_s": 0.002,
        "unpickled_in": "training",
    }
    store.update_run(run_id, facts={"handed_over": HANDED_OVER | crossing})
    at = app(run=str(run_id), tab="Loading")
    assert header in [each.value for each in at.header]
    (shown,) = [table.value for table in at.dataframe if "Meaning" in table.value]
    assert dict(zip(shown["What"], shown["How much"], strict=True)) == {
        "Workers": "2 by spawn",
        "Tensors of a batch": "16 (2.00 KiB)",
        "Segments of shared memory": "8, by file descriptor",
        "Pickling a batch": "8.00 ms of CPU (160% of making it)",
        "Unpickling a batch": "2.00 ms (20% of a step)",
        "Open descriptors, at most": "32 of 1,024 (3.1%)",
    }
    sample = {
        "shm_used_bytes": 48 << 20,
        "shm_free_bytes": 16 << 20,
        "worker_threads": 3.0,
        "worker_cpu_pct": 50.0,
        "worker_private_bytes": 20 << 20,
        "worker_pss_bytes": 80 << 20,
        "worker_rss_bytes": 300 << 20,
    }
    rows = [
        [{"t_s": t_s, **sample}.get(name, math.nan) for name in TELEMETRY_COLUMNS]
        for t_s in (100.2, 115.2)
    ]
    other = add_run(store, name="python train.py")
    append_telemetry(store, other, 1, rows)
    facts = {"facts": {"handed_over": HANDED_OVER}, "environment": TOLD}
    store.update_run(other, config=store.run(run_id).config, **facts)
    at = app(run=str(other), tab="Loading")
    (shown,) = [table.value for table in at.dataframe if "Meaning" in table.value]
    told = dict(zip(shown["What"], shown["How much"], strict=True))
    assert told["/dev/shm at its peak"] == "48.0 MiB of 64.0 MiB (75%)"
    private = "20.0 MiB; 80.0 MiB with its part of shared pages"
    assert told["Private memory of a worker"] == private
    assert told["Its growth"] == "0 B in 15.0 s, 2 samples: no steady growth"
    assert told["Threads of a worker"] == "3; 0.500 cores busy"


def test_slow_samples_are_a_list_that_sorts(store: RunStore, run_id: int) -> None:
    sample = {
        "index": 481,
        "times": 2,
        "total_s": 6.0,
        "longest_s": [3.2, 2.8],
        "steps": [8, 20],
        "file": "/data/0481.jpg",
        "file_bytes": 24 << 20,
    }
    told = {"timed": 5000, "median_s": 0.008, "p99_s": 0.02, "listed": [sample]}
    store.update_run(run_id, facts={"slow_samples": told})
    at = app(run=str(run_id), tab="Loading")
    assert "Slow samples" in [header.value for header in at.header]
    assert "The median of 5,000 samples is 8.00 ms." in said(at)
    (shown,) = [table.value for table in at.dataframe if "Sample" in table.value]
    assert shown.to_dict("records") == [
        {
            "Sample": 481,
            "Longest (ms)": 3200,
            "Times the median": 400,
            "In all (s)": 6.0,
            "Times": 2,
            "File": "/data/0481.jpg",
            "Size (MiB)": 24.0,
        }
    ]


def test_every_kth_slow_sample_is_named(store: RunStore, run_id: int) -> None:
    sample = {"times": 1, "total_s": 0.2, "longest_s": [0.2], "steps": [8], "file": ""}
    listed = [{**sample, "index": 100 * i + 37, "file_bytes": None} for i in range(50)]
    told = {"timed": 5000, "median_s": 0.008, "p99_s": 0.2, "listed": listed}
    told |= {"indices": [one["index"] for one in listed], "indices_times": [1] * 50}
    told |= {"indices_longest_s": [0.2] * 50, "sketch": [[0.008, 4950], [0.2, 50]]}
    store.update_run(run_id, facts={"slow_samples": told})
    at = app(run=str(run_id), tab="Loading")
    words = "Every 100th sample (37, 137, 237 and so on) takes about 200 ms, 25 times the median."
    assert words in said(at)


def test_late_batches_are_told_by_their_cause(store: RunStore, run_id: int) -> None:
    maker = {
        "looks": 6,
        "seconds": 0.9,
        "doing": {"drive": 6},
        "own_cpu_frac": 0.01,
        "queued_frac": 0.0,
        "cpu_frac": 0.01,
        "read_bytes": 4096.0,
        "major_faults": 0.0,
        "file": "/data/old/0481.jpg",
        "own": "dataset.py:41",
        "calls": "PIL.Image.open",
        "frames": ["PIL.Image.open 3"],
        "answers": 5,
        "making": 5,
        "unanswered": 0,
    }
    batch = {
        "step": 8,
        "waited_s": 1.0,
        "worker": 2,
        "looks": 6,
        "made_meanwhile": True,
        "maker": maker,
        "loop": None,
        "machine": None,
    }
    store.update_run(
        run_id, facts={"late_batches": {"late": 1, "waited_s": 1.0, "listed": [batch]}}
    )
    at = app(run=str(run_id), tab="Loading")
    assert "Late batches" in [header.value for header in at.header]
    (shown,) = [table.value for table in at.dataframe if "Why" in table.value]
    assert shown.to_dict("records") == [
        {
            "Batches": 1,
            "In all (s)": 1.0,
            "Longest (s)": 1.0,
            "Why": "worker 2 waited for a drive in PIL.Image.open <- dataset.py:41, /data/old/0481.jpg",
            "Where": "PIL.Image.open <- dataset.py:41",
            "Step": 8,
        }
    ]


def test_a_run_that_was_read_from_a_trace(store: RunStore, tmp_path: Path) -> None:
    """Its pages say so, and offer nothing that would run it again."""
    trace = trained_on_gpu(40, wait_ms=10.0, copy_ms=1.0, work_ms=4.0, waits_for_work=True)
    path = trace.write(tmp_path / "worker0.pt.trace.json.gz")
    run = add_trace(store, path, batch_size=64)
    other = add_trace(store, path, batch_size=64)
    at = app(run=str(run.id))
    words = said(at)
    assert "from a trace" in words
    assert "your own script" not in words
    assert "Read from a trace of torch.profiler, worker0.pt.trace.json.gz" in words
    assert not at.warning
    assert "These steps include what torch.profiler itself took" in words
    assert "Watching the script: vitprof watch" in words
    assert not at.error
    for tab in ("Timeline", "Loading", "Export"):
        assert not app(run=str(run.id), tab=tab).error
    compared = app("compare", runs=f"{run.id},{other.id}")
    assert not compared.error
    assert not app("history").error
