"""`code`: prints a strategy, that of a run or the one named, as a script for the user's own training."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from vitprof import formats
from vitprof.cli.common import terminal
from vitprof.cli.common.options import CONFIG_FIELDS, keyword, option, parameter, takes
from vitprof.config import GROUPS, RunConfig
from vitprof.errors import ConfigError
from vitprof.export.code import script
from vitprof.export.writing import write_text

PANELS = ("Strategy and its parts", "Loading", "Drive and cache", "What to train")
"""The groups of settings that a script depends on."""
NOT_IN_A_SCRIPT = ("n_images", "page_cache", "slow_drive", "slow_mb_s", "slow_latency_ms", "skip_unreadable")
"""Settings in these groups that a script does not depend on: they are about vitprof's own data and measuring."""


RUN_HELP = "id of the run whose strategy and settings to take, as `runs` lists it"


@takes(
    keyword("run", Annotated[int | None, terminal.run_id(RUN_HELP)]),
    *(option(name, panel) for panel in PANELS for name in GROUPS[panel] if name not in NOT_IN_A_SCRIPT),
    parameter("output", Path | None, None, "write the script to this new file instead"),
    parameter("force", bool, False, "replace the file if there is one"),
)
def code(*, run: int | None, output: Path | None, force: bool, **settings: Any) -> None:
    """Print a strategy as a script for your own training: that of a run, or the one that the options describe."""
    terminal.check_output(output)
    if output is not None and output.is_file() and not force:  # perhaps the training script that it is taken for
        raise ConfigError("output", str(output), "there is such a file; give another name, or --force to replace it")
    chosen = {name: value for name, value in settings.items() if value != CONFIG_FIELDS[name].default}
    throughput = ""
    if run is None:
        config = RunConfig(**chosen)
    else:
        with terminal.open_store() as store:
            stored = store.run(run)
        config = dataclasses.replace(stored.config, **chosen)
        speed = stored.summary.samples_per_s if stored.summary is not None else None
        if not chosen and speed is not None and formats.number(speed) != formats.NOT_AVAILABLE:
            throughput = formats.number(speed, "samples/s in steady state")
    text = script(config, throughput, run if not chosen else None)
    if output is None:
        terminal.print_text(text)
    else:
        write_text(output, text)
