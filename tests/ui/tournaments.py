"""For the tests of the Tournament page: tournaments made by hand, without a run."""

from collections.abc import Mapping

from tests.ui.dashboard import add_run
from vitprof.config import RunConfig
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED, OwnScript, own_config
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.experiments.tournament.planning import create_tournament, plan
from vitprof.store import RunStore, role_of
from vitprof.store.tournaments import TournamentStatus, set_status

DEVICE = "simulated:5,0"
KEYS = {name: f"{name}/b128/w-/as-is" for name in ("per-sample", "tensordataset", "memory")}


def spec(**more: object) -> TournamentSpec:
    """Three strategies at one batch size, two rounds."""
    base = RunConfig(steps=40, device=DEVICE, evaluate=False)
    known = {
        "base": base,
        "strategies": tuple(KEYS),
        "batch_sizes": (128,),
        "repeats": 2,
        "until_decided": False,
    }
    return TournamentSpec(**(known | more))  # type: ignore[arg-type]


def add_tournament(
    store: RunStore,
    waits: Mapping[str, float],
    *,
    rounds: int = 2,
    status: TournamentStatus = "done",
    failed: str = "",
    name: str = "",
    **state: object,
) -> int:
    """A tournament whose strategies waited so many seconds for each batch; `failed` is one that failed at once."""
    made = spec()
    tournament_id = create_tournament(store, made, name)
    trials, group = (
        {trial.config.strategy: trial for trial in plan(made)},
        f"tournament:{tournament_id}",
    )
    for number in range(1, rounds + 1):
        for strategy, wait_s in waits.items():
            role = role_of(trials[strategy].key, number)
            # a little noise, so that there is an interval
            more = {"group_key": group, "role": role, "strategy": strategy, "device": DEVICE}
            add_run(store, wait_s=wait_s * (1 + 0.01 * number), **more)
    if failed:
        role = role_of(trials[failed].key, 1)
        run_id = add_run(store, n=0, status="failed", group_key=group, role=role, strategy=failed)
        store.update_run(run_id, error="the disk is full: free some space")
    set_status(store, tournament_id, status, **state)
    return tournament_id


def add_script_tournament(
    store: RunStore,
    script: OwnScript,
    waits: Mapping[str, float],
    *,
    rounds: int = 2,
    status: TournamentStatus = "done",
    **state: object,
) -> int:
    """A tournament on a user's own script, whose settings waited so many seconds for each batch; those without any
    have not run."""
    known = {"script": script, "repeats": 2, "baseline": UNCHANGED}
    made = TournamentSpec(own_config("", steps=40), (OWN_SCRIPT,), (1,), **known)  # type: ignore[arg-type]
    tournament_id = create_tournament(store, made)
    trials = [trial for trial in plan(made) if trial.key in waits]
    for number in range(1, rounds + 1):
        for trial in trials:
            role = role_of(trial.key, number)
            group = {"group_key": f"tournament:{tournament_id}", "role": role}
            run_id = add_run(store, wait_s=waits[trial.key] * (1 + 0.01 * number), **group)
            store.update_run(run_id, config=trial.config)
    set_status(store, tournament_id, status, **state)
    return tournament_id
