"""Every config that validates has an end: it is resolved, judged and settled within a second, whatever it asks for."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.alarm import cpu_alarm
from tests.config.configs import configs
from tests.store.other_versions import rewrite
from tests.stored_series import append_steps
from vitprof.config import RunConfig
from vitprof.config.resolve import resolve, run_name
from vitprof.errors import ConfigError
from vitprof.jobs.finalise import settle
from vitprof.recording.columns import STEP_COLUMNS
from vitprof.store import RunStore


def made_steps(config: RunConfig, n: int, seed: int) -> list[list[float]]:
    """`n` steps as a job of this config may have had, with stalls."""
    rng = np.random.default_rng(seed)
    wait_s = rng.exponential(0.005, n) * rng.choice([0.0, 1.0, 100.0], n, p=[0.3, 0.6, 0.1])
    start_s = 100.0 + np.cumsum(wait_s + 0.005) - wait_s - 0.005
    figures = {
        "rank": 0,
        "step": np.arange(n),
        "epoch": 0,
        "t_start_s": start_s,
        "data_wait_s": wait_s,
        "host_s": 0.005,
        "compute_start_s": start_s + wait_s,
        "compute_s": 0.005,
        "gap_s": wait_s,
        "exposed_wait_s": wait_s,
        "step_s": wait_s + 0.005,
        "samples": min(config.batch_size, 2**20),
        "warmup": np.arange(n) < config.warmup_steps,
        "read_s": wait_s / 2,
        "decode_s": wait_s / 2,
        "worker": np.arange(n) % max(config.workers or 1, 1),
    }
    columns = [np.broadcast_to(np.asarray(figures.get(name, np.nan), float), n) for name in STEP_COLUMNS]
    return np.column_stack(columns).tolist()


def resolved(config: RunConfig) -> RunConfig | None:
    """The config as a job, without what does not go together; None where it is none. Such a config comes from a bundle,
    or from an older version: it need not be judged, but has an end too.
    """
    asked = config
    for _ in dataclasses.fields(config):
        try:
            done = resolve(asked)
        except ConfigError as error:
            default = getattr(RunConfig, error.field)
            if getattr(asked, error.field) == default:
                return None
            asked = dataclasses.replace(asked, **{error.field: default})
        else:
            run_name(done)
            return done
    raise AssertionError("it is refused again and again")


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(config=configs, n=st.sampled_from([0, 1, 30, 200]), seed=st.integers(0, 99))
def test_every_config_that_validates_is_resolved_judged_and_settled(
    store: RunStore, config: RunConfig, n: int, seed: int
) -> None:
    run_id = store.create_run(RunConfig())
    append_steps(store, run_id, made_steps(config, n, seed))
    with cpu_alarm(1.0):
        job = resolved(config)
        rewrite(store, run_id, (job or config).to_dict())
        found = settle(store, run_id, 99.0, 200.0)
        store.update_run(run_id, status="done", **found)
    run = store.run(run_id)
    if job is not None:
        assert run.notices == ()
        assert run.summary is not None
        assert run.verdict is not None
