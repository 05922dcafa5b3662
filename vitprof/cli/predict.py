"""`predict`: predicts other strategies' throughput from a run and a few seconds of loading, and checks it by runs."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer
from rich.table import Table

from vitprof import formats
from vitprof.analysis.verdict.prediction import Calibration
from vitprof.cli.common import terminal
from vitprof.cli.common.options import Anyway, strategies_that_run, texts
from vitprof.cli.common.progress import progress
from vitprof.cli.common.terminal import EXIT_FAILED, AsJson, number, print_json, run_id
from vitprof.config.bounds import LOADING_S
from vitprof.config.strategies import strategy
from vitprof.errors import ConfigError, JobError
from vitprof.experiments import prediction as jobs
from vitprof.experiments.trials import Progress, job_manager
from vitprof.recording.columns import json_number
from vitprof.store import RunStore, StoredRun
from vitprof.store.predictions import StoredPrediction

NOT_RUN = "predicted, not run"


def predict(
    run: Annotated[int, run_id("id of a run that trained, as `runs` lists it")],
    strategies: Annotated[
        str, typer.Option(help="strategies, separated by commas, or all; a few usual ones if not given")
    ] = "",
    seconds: Annotated[float, number("seconds", LOADING_S, "seconds of loading for each strategy")] = 2.0,
    verify: Annotated[bool, typer.Option("--verify", help="also run each predicted job and compare")] = False,
    anyway: Anyway = False,
    as_json: AsJson = False,
) -> None:
    """Predict other strategies' samples/s from a run and a few seconds of loading with each."""
    with contextlib.closing(RunStore()) as store:
        profiled = jobs.profile_of(store, run)
        chosen = _chosen(strategies, profiled) if strategies else jobs.usual_strategies(profiled)
        if not chosen:
            raise JobError(f"no other strategy can load {profiled.config.dataset} here; there is nothing to predict")

        def report(p: Progress) -> None:
            show(store.run(p.run_id or 0), f"{p.words}, {p.done + 1} of {p.total}: ")

        with job_manager(store, anyway=anyway) as manager, progress() as show:
            predictions = jobs.predict_strategies(manager, run, chosen, seconds=seconds, progress=report)
            if verify:
                predictions = jobs.verify(manager, predictions, progress=report)
        error = jobs.calibration_for(store, profiled)
        failed = jobs.failures(store, run, chosen, remedy="give more --seconds")
    if as_json:
        print_json(_object(profiled, predictions, error, failed))
    else:
        if predictions:
            _show(profiled, predictions)
            terminal.out.print(error.sentence, soft_wrap=True)
        for line in failed:
            terminal.err.print(line, soft_wrap=True)
    if not predictions:
        raise typer.Exit(EXIT_FAILED)


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
    s = profiled.summary
    table = Table(
        "strategy",
        "predicted samples/s",
        "95%",
        "measured",
        "error",
        title=f"from run {profiled.id}: {profiled.name}, {formats.number(s.samples_per_s if s else None)} samples/s",
        title_justify="left",
    )
    for p in sorted(predictions, key=lambda p: p.samples_per_s, reverse=True):
        checked = p.measured_per_s is not None
        table.add_row(
            p.config.strategy,
            formats.number(p.samples_per_s),
            f"{formats.number(p.low)} to {formats.number(p.high)}",
            formats.number(p.measured_per_s) if checked else NOT_RUN,
            f"{(p.error or 0) * 100:+.1f}%" if checked else "",
        )
    terminal.out.print(table)


def _object(
    profiled: StoredRun, predictions: list[StoredPrediction], error: Calibration, failed: list[str]
) -> dict[str, Any]:
    return {
        "run_id": profiled.id,
        "predictions": [
            {
                "prediction_id": p.id,
                "strategy": p.config.strategy,
                "config": p.config.to_dict(),
                "samples_per_s": json_number(p.samples_per_s),
                "low": json_number(p.low),
                "high": json_number(p.high),
                "measured_samples_per_s": json_number(p.measured_per_s),
                "error_frac": json_number(p.error),
                "verified_run_id": p.verified_run_id,
            }
            for p in predictions
        ],
        "calibration": {
            "n": error.n,
            "median_abs_error_frac": json_number(error.median_abs_error),
            "inside_frac": json_number(error.inside_frac),
        },
        "failed": failed,
    }
