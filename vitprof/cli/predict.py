"""`predict`: predicts other strategies' throughput from a run and a few seconds of loading, and checks it by runs."""

from __future__ import annotations

from typing import Annotated

import typer

from vitprof import formats
from vitprof.cli.common import terminal
from vitprof.cli.common.options import Anyway, strategies_that_run, texts
from vitprof.cli.common.progress import progress, trial_progress
from vitprof.config.bounds import LOADING_S
from vitprof.config.strategies import strategy
from vitprof.errors import ConfigError, JobError
from vitprof.experiments import prediction as jobs
from vitprof.experiments.trials import job_manager
from vitprof.store import StoredRun
from vitprof.store.predictions import StoredPrediction

NOT_RUN = "predicted, not run"


def predict(
    run: Annotated[int, terminal.run_id("id of a run that trained, as `runs` lists it")],
    strategies: Annotated[
        str, typer.Option(help="strategies, separated by commas, or all; a few usual ones if not given")
    ] = "",
    seconds: Annotated[float, terminal.number("seconds", LOADING_S, "seconds of loading for each strategy")] = 2.0,
    verify: Annotated[bool, typer.Option("--verify", help="also run each predicted job and compare")] = False,
    anyway: Anyway = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Predict other strategies' samples/s from a run and a few seconds of loading with each."""
    with terminal.open_store() as store:
        profiled = jobs.profile_of(store, run)
        chosen = _chosen(strategies, profiled) if strategies else jobs.usual_strategies(profiled)
        if not chosen:
            raise JobError(f"no other strategy can load {profiled.config.dataset} here; there is nothing to predict")
        with job_manager(store, anyway=anyway) as manager, progress() as show:
            report = trial_progress(store, show)
            predictions = jobs.predict_strategies(manager, run, chosen, seconds=seconds, progress=report)
            if verify:
                predictions = jobs.verify(manager, predictions, progress=report)
        calibration = jobs.calibration_for(store, profiled)
        failed = jobs.failures(store, run, chosen, remedy="give more --seconds")
    if as_json:
        errors = {"n": calibration.n, "inside_frac": calibration.inside_frac}
        errors |= {"median_abs_error_frac": calibration.median_abs_error}
        known = {"run_id": profiled.id, "calibration": errors, "failed": failed}
        terminal.print_json(known | {"predictions": [_object(p) for p in predictions]})
    else:
        if predictions:
            _show(profiled, predictions)
            terminal.show(calibration.sentence)
        terminal.show(*failed, console=terminal.err)
    if not predictions:
        raise typer.Exit(terminal.EXIT_FAILED)


def _chosen(names: str, profiled: StoredRun) -> list[str]:
    """Returns the names of the strategies that `--strategies` asks for. Raises `ConfigError`."""
    if names == "all":
        return [name for name in strategies_that_run(profiled.config) if name != profiled.config.strategy]
    asked = texts("strategies", names, "give names separated by commas, or all")
    try:
        return [strategy(name).name for name in asked]
    except ConfigError as error:
        raise ConfigError("strategies", error.value, error.allowed) from None


def _show(profiled: StoredRun, predictions: list[StoredPrediction]) -> None:
    speed = formats.number(profiled.summary.samples_per_s if profiled.summary else None)
    rows = (
        (
            p.config.strategy,
            formats.number(p.samples_per_s),
            f"{formats.number(p.low)} to {formats.number(p.high)}",
            NOT_RUN if p.measured_per_s is None else formats.number(p.measured_per_s),
            "" if p.measured_per_s is None else f"{(p.error or 0) * 100:+.1f}%",
        )
        for p in sorted(predictions, key=lambda p: p.samples_per_s, reverse=True)
    )
    header = ("strategy", "predicted samples/s", "95%", "measured", "error")
    terminal.show_table(header, rows, f"from run {profiled.id}: {profiled.name}, {speed} samples/s")


def _object(p: StoredPrediction) -> dict[str, object]:
    return {
        "prediction_id": p.id,
        "strategy": p.config.strategy,
        "config": p.config.to_dict(),
        "samples_per_s": p.samples_per_s,
        "low": p.low,
        "high": p.high,
        "measured_samples_per_s": p.measured_per_s,
        "error_frac": p.error,
        "verified_run_id": p.verified_run_id,
    }
