"""Runs of all machines, with what they spent."""

import math

from vitprof.config import RunConfig
from vitprof.recording.columns import RunSummary
from vitprof.store import RunStore
from vitprof.store.database import now_utc
from vitprof.store.machines import work_since

SUMMARY = RunSummary(n_samples=7200, samples_per_s=2.0, exposed_wait_frac=0.25)


def test_recent_runs_and_all_that_go_on(store: RunStore) -> None:
    def made(status: str, days_ago: float, device: str = "cuda:0", **columns: object) -> int:
        run_id = store.create_run(RunConfig(device=device))
        store.update_run(run_id, status=status, created_utc=now_utc(days_ago), **columns)
        return run_id

    ranks = {"ranks": {"lost_frac": 0.5}}
    of_eight = {"world_size": 8, "rank": 0, "device": "cuda:3", "hostname": "gpu-01"}
    plain = made("done", 1, summary=SUMMARY)
    large = made("done", 1, summary=SUMMARY, environment=of_eight, facts=ranks)
    old, queued = made("running", 50), made("queued", 0)
    made("done", 50, summary=SUMMARY)
    made("done", 1, "simulated:5,0", summary=SUMMARY)
    made(
        "running", 0, environment=of_eight | {"rank": 4}
    )  # another node of a job: that of rank 0 has all its devices
    failed = made("failed", 1)
    with_simulated = {work.id: work for work in work_since(store, 7, simulated=True)}
    (simulated,) = (work for work in with_simulated.values() if work.simulated)
    assert simulated.device == "simulated:5,0"
    found = {work.id: work for work in work_since(store, 7)}
    assert simulated.id not in found
    assert list(found) == [failed, queued, old, large, plain]
    assert [(work.live, work.queued) for work in found.values()][1:4] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert found[plain].spent.trained_s == 3600
    assert (found[plain].spent.devices, found[plain].spent.idle_frac) == (1, 0.25)
    of_ranks = found[large].spent
    assert (of_ranks.machine, of_ranks.devices, of_ranks.idle_frac) == ("gpu-01", 8, 0.5)
    assert (found[large].device, found[plain].device) == ("cuda:3", "cuda:0")
    assert math.isnan(found[failed].spent.trained_s)
