"""Which trials a tournament makes, and in which order."""

import dataclasses
from collections import Counter
from typing import Any

import pytest

from tests.analysis.tournament.tournament_entries import entry, with_runs
from vitprof.analysis.tournament.entries import key_in_words
from vitprof.analysis.tournament.epoch_samples import EpochSamples
from vitprof.config import RunConfig
from vitprof.config.own_script import OWN_SCRIPT, UNCHANGED, OwnScript, own_config
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError
from vitprof.experiments.tournament import planning
from vitprof.experiments.tournament.planning import plan
from vitprof.experiments.tournament.tournament_view import (
    NOT_COUNTED,
    planned_rounds,
    with_samples,
)
from vitprof.store import RunStore, tournaments

BASE = RunConfig(device="simulated:2,10", threads=1, steps=10, seed=7)


def made(**values: Any) -> TournamentSpec:
    return TournamentSpec(
        **({"base": BASE, "strategies": ("memory", "workers"), "batch_sizes": (32, 64)} | values)
    )


def keys(**values: Any) -> list[str]:
    return [t.key for t in plan(made(**values))]


def test_every_combination_with_workers_where_a_strategy_takes_them() -> None:
    assert keys() == [
        "memory/b32/w-/as-is",
        "memory/b64/w-/as-is",
        "workers/b32/w2/as-is",
        "workers/b64/w2/as-is",
    ]
    expected = ["memory/b32/w-/as-is", "workers/b32/w0/as-is", "workers/b32/w1/as-is"]
    assert keys(workers=(0, 1), batch_sizes=(32,)) == expected
    for trial in plan(made()):
        assert (trial.config.seed, trial.config.steps, trial.config.device) == (
            7,
            10,
            "simulated:2,10",
        )
        assert trial.config.loader is not None
        assert trial.key.startswith(f"{trial.config.strategy}/b{trial.config.batch_size}/")


def test_other_settings_are_varied_where_a_strategy_takes_them() -> None:
    vary = (("prefetch_factor", (2, 4)), ("pin_memory", (True, False)))
    planned = plan(made(batch_sizes=(32,), workers=(0, 2), vary=vary))
    two = "workers/b32/w2/as-is"
    assert [t.key for t in planned] == [
        "memory/b32/w-/as-is",
        # without workers nothing is prefetched
        "workers/b32/w0/as-is/pin memory",
        "workers/b32/w0/as-is/pin memory off",
        f"{two}/prefetch factor 2/pin memory",
        f"{two}/prefetch factor 2/pin memory off",
        f"{two}/prefetch factor 4/pin memory",
        f"{two}/prefetch factor 4/pin memory off",
    ]
    last = planned[-1].config
    assert (last.workers, last.prefetch_factor, last.pin_memory) == (2, 4, False)
    assert planned[1].config.prefetch_factor is None
    words = "workers, batch 32, 2 workers, prefetch factor 4, pin memory off"
    assert key_in_words(planned[-1].key) == words
    with pytest.raises(ConfigError, match="no strategy of this tournament takes it: memory"):
        plan(made(strategies=("memory",), vary=vary))


def test_what_is_refused_stays_with_its_reason() -> None:
    planned = plan(made(strategies=("memory", "dali"), batch_sizes=(32, 70_000)))
    assert len(planned) == 4
    why = {t.key: t.refused for t in planned}
    assert why["memory/b32/w-/as-is"] == ""
    assert "60000 samples" in why["memory/b70000/w-/as-is"]
    assert "cannot load digits" in why["dali/b32/w2/as-is"]
    planned = plan(made(), lambda config: "no room" if config.batch_size == 64 else "")
    assert [t.refused for t in planned] == ["", "no room", "", "no room"], (
        "a reason of this machine"
    )
    planned = plan(
        made(strategies=("memory",), batch_sizes=(32,), page_caches=("as-is", "warm", "cold"))
    )
    known = [(t.key, bool(t.refused)) for t in planned]
    assert known == [("memory/b32/w-/as-is", False), ("memory/b32/w-/cold", True)], (
        "in memory there is no page cache"
    )


def test_shared_settings_go_where_they_are_taken_and_the_baseline_is_a_trial() -> None:
    base = dataclasses.replace(BASE, prefetch_factor=7)
    by_key = {t.key: t for t in plan(made(base=base, batch_sizes=(32,)))}
    assert by_key["workers/b32/w2/as-is"].config.prefetch_factor == 7
    assert by_key["memory/b32/w-/as-is"].config.prefetch_factor is None
    spec = made(strategies=("dali", "memory"))
    assert planning.baseline_of(spec, plan(spec)) == "memory/b32/w-/as-is"
    spec = made(baseline="workers/b64/w2/as-is")
    assert planning.baseline_of(spec, plan(spec)) == "workers/b64/w2/as-is"
    with pytest.raises(ConfigError, match="no such trial"):
        plan(made(baseline="memory/b9/w-/as-is"))


@pytest.mark.parametrize("repeats", [1, 4])
def test_rounds(repeats: int) -> None:
    planned = plan(made(strategies=("memory", "workers", "dali")))
    turns = list(planned_rounds(planned, repeats))
    assert [number for number, _ in turns] == [r for r in range(1, repeats + 1) for _ in range(4)]
    assert set(Counter(t.key for _, t in turns).values()) == {repeats}
    assert not [t for _, t in turns if t.refused]
    assert (
        len({turns[4 * r][1].key for r in range(repeats)}) == repeats
    )  # each round begins elsewhere


def test_a_bad_one_is_not_kept(store: RunStore) -> None:
    with pytest.raises(ConfigError):
        planning.create_tournament(store, made(baseline="nonsense"))
    with pytest.raises(ConfigError):
        planning.create_tournament(store, made(), name="x" * 201)
    assert tournaments.list_tournaments(store) == []


def test_a_proof_runs_the_job_and_the_advised_one_for_as_long() -> None:
    config, same = (
        dataclasses.replace(BASE, strategy="workers", name="mine"),
        "workers/b128/w2/as-is",
    )
    for advised, key in (
        ({"strategy": "memory"}, "memory/b128/w-/as-is"),
        ({"batch_size": 256}, "workers/b256/w2/as-is"),
        (
            {"compile": True, "compile_mode": "reduce-overhead"},
            f"{same}/compile/compile mode reduce-overhead",
        ),
        ({"prefetch_factor": 4}, f"{same}/prefetch factor 4"),
    ):
        spec = planning.in_turns(config, dataclasses.replace(config, **advised), of_run=7)  # type: ignore[arg-type]
        planned = plan(TournamentSpec.from_dict(spec.to_dict()))
        assert [t.key for t in planned] == [same, key]
        made = {
            (t.config.seconds, t.config.steps, t.config.evaluate, t.config.name) for t in planned
        }
        assert made == {(3.0, None, False, "")}
        assert key_in_words(key).split(", ")[0] == planned[1].config.strategy
        assert (spec.of_run, spec.title, planning.baseline_of(spec, planned)) == (
            7,
            "proof for run 7",
            same,
        )
    jobs = (
        dataclasses.replace(config, strategy="memory"),
        config,
        dataclasses.replace(config, prefetch_factor=4),
    )
    assert len({t.key for t in plan(planning.in_turns(*jobs))}) == 3, (
        "no runs of two jobs under one key"
    )


def test_a_decoder_that_the_scripts_python_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def missing(python: list[str], modules: list[str]) -> frozenset[str]:
        asked.append((python, modules))
        return frozenset({"cv2"})

    monkeypatch.setattr(planning.script_python, "missing_modules", missing)
    vary = (("workers", (2,)), ("decoder", ("as-is", "simplejpeg", "opencv")))
    with pytest.raises(ConfigError) as refused:
        planning.check_decoders(("python3", "train.py"), vary)
    assert asked == [(["python3"], ["simplejpeg", "cv2"])]
    assert (refused.value.field, refused.value.value) == ("vary", "decoder=opencv")
    assert refused.value.allowed == (
        "the script's Python has no module cv2: python3 -m pip install opencv-python-headless, or leave it out"
    )
    planning.check_decoders(("no-such-program", "train.py"), vary)
    planning.check_decoders(("python3", "train.py"), vary[:1])
    assert len(asked) == 1, "nobody knows its Python, or no decoder is tried"


@pytest.mark.parametrize(
    ("vary", "of_setting", "status", "samples"),
    [
        (("workers", (2,)), EpochSamples((160.0,), 8.0), "failed", ""),
        (("workers", (2,)), EpochSamples((80.0,), 8.0), "done", ""),
        (("workers", (2,)), EpochSamples((), 64.0), "done", NOT_COUNTED),
        (("batch_size", (2,)), EpochSamples((20.0,), 8.0), "done", ""),
        (("prefetch_factor", (4,)), EpochSamples((), 64.0), "done", ""),
    ],
)
def test_the_samples_of_an_epoch_are_those_of_the_script_as_it_is(
    vary: tuple[str, tuple[int, ...]], of_setting: EpochSamples, status: str, samples: str
) -> None:
    """Another batch size may have another number, where an epoch has so many steps."""
    loader = {"num_workers": 1, "batch_size": 8, "iterable": True, "divides": True}
    script = OwnScript(("python", "train.py"), "/work", (vary,), loader)
    spec = TournamentSpec(own_config("", steps=60), (OWN_SCRIPT,), (8,), script=script)
    planned = plan(spec)
    entries = []
    for trial, counted in zip(planned, (EpochSamples((80.0,), 8.0), of_setting), strict=True):
        made_of = entry(OWN_SCRIPT, 100.0, runs=1, batch_size=8, workers=trial.workers)
        measured = with_runs(made_of, epoch_samples=[counted])
        entries.append(dataclasses.replace(measured, key=trial.key))
    as_it_is, other = with_samples(entries, planned, loader)
    assert (as_it_is.key, as_it_is.status, as_it_is.samples) == (UNCHANGED, "done", "")
    assert (other.status, other.samples) == (status, samples)
