"""Output of `tournament`: its results, the list of tournaments, and the result of `--auto`."""

from __future__ import annotations

from typing import get_args

from vitprof.analysis.tournament.entries import Status as TrialStatus
from vitprof.analysis.tournament.rows import Standing
from vitprof.analysis.tournament.scores import Comparison
from vitprof.cli.schemas.fields import (
    ANYTHING,
    NUMBER,
    SWITCH,
    TEXT,
    UNKNOWN,
    WHOLE,
    Field,
    Shape,
    by_name,
    field,
    fields_of,
    listed,
    named,
    one_of,
)
from vitprof.cli.schemas.runs import CONFIG, SIMULATED, VERSION
from vitprof.config.own_script_trials import OwnScript
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.store.tournaments import TournamentStatus

OF_STRATEGIES = "for strategies"
NO_FIGURE = "without a figure"
WORDS = {
    "n_runs": "runs behind the figures",
    "n_steps": "steady steps of these runs",
    "samples_per_s": "throughput in steady state: all samples over all time of these runs",
    "samples_per_s_low": "lower end of its interval",
    "samples_per_s_high": "upper end",
    "speed_up": "score over the baseline's; where other programs disturbed a setting it is not the ratio of the "
    "throughputs",
    "speed_up_low": "lower end of its interval",
    "speed_up_high": "upper end",
    "against_baseline": "faster, slower, equal (known to differ by less than 5%) or undecided; empty for the baseline",
    "standing": "the same against the fastest with its page cache; fastest for that one",
    "near_best": "probability that no other setting with its page cache is faster by more than 5%",
    "epoch_s": "seconds for an epoch: measured where all settings saw a whole one, else from the throughput",
    "epoch_s_low": "lower end of its interval",
    "epoch_s_high": "upper end",
    "gpu_mem_bytes": "peak device memory of the job: NVML's figure, or what PyTorch reserved where NVML has none",
    "gpu_util_pct": "mean of NVML's utilisation while training",
    "device_idle_frac": "share of the steady time in which the device computed nothing",
    "rss_bytes": "peak resident memory of the job's processes",
    "prepare_s": "seconds that its storage took to build, 0 where it needs none",
    "disk_bytes": "disk space of its storage",
    "ram_bytes": "RAM disk and memory for the samples that it keeps",
    "break_even_epochs": "epochs after which its preparation has paid for itself against the baseline",
    "break_even_epochs_low": "lower end, by the intervals of the epoch's seconds",
    "break_even_epochs_high": "upper end",
}
"""Figures of a trial, in the words of docs/formats.md."""
KINDS = {
    "n_runs": WHOLE,
    "n_steps": WHOLE,
    "against_baseline": one_of("", *get_args(Comparison)),
    "standing": one_of(*dict.fromkeys(v for part in get_args(Standing) for v in get_args(part))),
}


def _figure(name: str, doc: str) -> Field:
    null = UNKNOWN if name in ("prepare_s", "disk_bytes", "ram_bytes") else NO_FIGURE
    null = "for never, and where it is not known" if name.startswith("break_even") else null
    kind = KINDS.get(name, NUMBER)
    return field(kind, doc, unit=named(name), null="" if kind == WHOLE else null)


TRIAL = Shape(
    "trial",
    "Trials of a tournament",
    "A setting with its figures, the ranked ones first. Intervals hold with 95% in all looks together.",
    {
        "rank": field(
            WHOLE, "1 for the fastest, shared by settings that are as fast (`standing` equal)", null=NO_FIGURE
        ),
        "key": field(
            TEXT,
            "the setting: strategy/b batch size/w workers (- for none)/page cache; for a user's own script "
            "own-script/ and the changed arguments of its DataLoader",
        ),
        "strategy": field(TEXT, "how samples are stored, loaded and brought to the device"),
        "batch_size": field(WHOLE, "samples for each step"),
        "workers": field(WHOLE, "worker processes or threads", null="where the strategy has none"),
        "page_cache": field(one_of("as-is", "warm", "cold"), "the system's cache of the files at the start"),
        "status": field(one_of(*get_args(TrialStatus)), "its state; cut: ended early by early stop"),
        "reason": field(TEXT, "why it was cut, failed or refused; else empty"),
        "baseline": field(SWITCH, "whether the others are compared with it"),
        "recommended": field(SWITCH, "whether it is the one setting to use"),
        "n_made": field(
            WHOLE,
            "its runs in the store, including those that failed, were stopped or were disturbed by other programs",
        ),
        **{name: _figure(name, doc) for name, doc in WORDS.items()},
        "losses": field(
            TEXT,
            "for a user's own script: how the setting changes its losses",
            null="where they are the same, or not known",
        ),
        "break_even": field(TEXT, "break-even in words", null="where there is none"),
    },
)
SCRIPT = Shape(
    "script",
    "A script in a tournament",
    "A user's own script, and the arguments of its train DataLoader that are varied.",
    fields_of(
        OwnScript,
        null="",
        vary=field(
            listed(listed(ANYTHING)), "pairs of an argument's name and the list of its values; all combinations run"
        ),
        loader=field(
            by_name(ANYTHING),
            "its train loader, as the first trial found it",
            null="before its first trial has ended",
        ),
    ),
)
SPEC = Shape(
    "spec",
    "What a tournament runs",
    "Every combination of strategies, batch sizes, workers and page caches is a setting; each runs once in a round.",
    fields_of(
        TournamentSpec,
        null="",
        base=field(CONFIG, "what all trials share: data set, model, device, the budget of each trial, threads, seed"),
        strategies=field(listed(TEXT), "names of strategies; own-script for a user's own script"),
        batch_sizes=field(listed(WHOLE), "batch sizes"),
        workers=field(listed(WHOLE), "for strategies that take workers", null="for each strategy's own number"),
        page_caches=field(listed(TEXT), "states of the page cache: as-is, warm, cold"),
        until_decided=field(
            SWITCH, "whether more rounds run, with the settings that can still be the fastest, until it is decided"
        ),
        seconds=field(
            NUMBER, "time limit for all runs together: no trial begins after it", unit="s", null="for no limit"
        ),
        baseline=field(TEXT, "key of the trial that the others are compared with; empty for the first that can run"),
        early_stop=field(SWITCH, "whether trials that cannot win any more are cut short"),
        script=field(SCRIPT, "the script whose settings are tried", absent=OF_STRATEGIES),
    ),
)
RECOMMENDATION = Shape(
    "recommendation",
    "The recommendation",
    "One setting, with its reason; or why none can be named yet.",
    {
        "key": field(TEXT, "the setting to use", null="while it is too early, or not decided"),
        "sentence": field(TEXT, "what to use, how much faster it is, how sure that is, and why"),
        "equals": field(listed(TEXT), "settings that are as fast; while undecided, those that can be the fastest"),
        "code": field(
            TEXT, "the DataLoader's arguments as code", null="where nothing is to be changed", absent=OF_STRATEGIES
        ),
        "probability": field(NUMBER, "probability that no other setting is faster by more than 5%", null=UNKNOWN),
    },
)
STATUS = field(one_of(*get_args(TournamentStatus)), "its state now")
ABOUT = {
    "tournament_id": field(WHOLE, "number of the tournament in the store"),
    "name": field(TEXT, "its name"),
    "status": STATUS,
    "created_utc": field(TEXT, "when it was made, ISO 8601 with a Z"),
    "note": field(TEXT, "what stopped or paused it, in words; empty if nothing did"),
    "spec": field(SPEC, "what it runs"),
    "simulated": SIMULATED,
}
TOURNAMENT = Shape(
    "tournament",
    "A tournament",
    "The leaderboard and the recommendation, also while the tournament is not done.",
    {
        "schema_version": VERSION,
        **ABOUT,
        "baseline": field(TEXT, "key of the setting that the others are compared with"),
        "best": field(TEXT, "key of the fastest setting", null="while none has a figure"),
        "recommendation": field(RECOMMENDATION, "which setting to use", null="while none has a figure"),
        "trials": field(listed(TRIAL), "one for each setting"),
    },
)
ONE_OF_LIST = Shape("listed-tournament", "A tournament of a list", "What a tournament runs, and its state.", ABOUT)
TOURNAMENTS = Shape(
    "tournaments",
    "Tournaments of the store",
    "All tournaments, newest first.",
    {"schema_version": VERSION, "tournaments": field(listed(ONE_OF_LIST), "one for each tournament")},
)

CANDIDATE_FIELDS = {
    "workers": field(WHOLE, "worker processes or threads", null="for the strategy's own"),
    "prefetch_factor": field(WHOLE, "batches kept ready", null="for the strategy's own"),
    "batch_size": field(WHOLE, "samples for each step"),
}
CANDIDATE = Shape("candidate", "A setting of a search", "The values that a search tries.", CANDIDATE_FIELDS)
TRIED = Shape(
    "tried",
    "Runs of a search",
    "One run of the search.",
    {
        "rung": field(WHOLE, "level of the search, from 1; 0 for the runs that check the winner"),
        "run_id": field(WHOLE, "number of the run in the store"),
        "samples_per_s": field(
            NUMBER, "its throughput", unit="samples/s", null="where it failed, or had too few steps"
        ),
        "error": field(TEXT, "why it failed; else empty"),
    },
    also=CANDIDATE,
)
TUNING = Shape(
    "tuning",
    "A search for settings",
    "The best workers, prefetch factor and batch size of one strategy.",
    {
        "schema_version": VERSION,
        "strategy": field(TEXT, "the strategy"),
        "default": field(CANDIDATE, "the strategy's own setting, or the one that was asked for"),
        "winner": field(CANDIDATE, "the best setting; the default where none was better"),
        "samples_per_s": field(NUMBER, "the winner's throughput", unit="samples/s", null="where nothing was measured"),
        "gain": field(NUMBER, "the winner's throughput divided by the default's", null=UNKNOWN),
        "gain_low": field(NUMBER, "lower end of its 95% interval", null=UNKNOWN),
        "gain_high": field(NUMBER, "upper end of its 95% interval", null=UNKNOWN),
        "verified": field(SWITCH, "whether both were run again in turns, and the gain is from those runs alone"),
        "simulated": SIMULATED,
        "seconds": field(NUMBER, "how long the search took", unit="s"),
        "n_candidates": field(WHOLE, "settings that could have been tried"),
        "command": field(TEXT, "command that runs the winner"),
        "sentence": field(TEXT, "what was found, in words"),
        "config": field(CONFIG, "the job with the winner's setting"),
        "importances": field(
            by_name(NUMBER), "setting -> its share of the differences in throughput; empty where not known"
        ),
        "tried": field(listed(TRIED), "all runs, in order"),
    },
)
