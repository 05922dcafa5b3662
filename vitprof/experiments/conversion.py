"""Plans to convert the samples of a user's own script: some are stored in each form that fits, and the script is run on
each, as a tournament.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from vitprof.analysis.conversion import Conversion
from vitprof.config import forms
from vitprof.config.own_script import (
    OWN_SCRIPT,
    STORAGE,
    UNCHANGED,
    OwnScript,
    OwnSetting,
    own_config,
)
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.errors import ConfigError, VitprofError
from vitprof.home import ensure_dir, home
from vitprof.jobs import dataset_report
from vitprof.jobs.trial_folder import isolation_of
from vitprof.store import RunStore, tournaments

ORIGINALS = "originals.txt"
"""The names of the files that the samples of a plan were read from, with NUL between them."""
FEWEST_STEPS = 40
"""Steps of a trial in which no sample may be read twice: the first ones are warm-up, 20 give an interval."""


def plans_directory() -> Path:
    return home() / "converted"


def store_samples(
    command: Sequence[str],
    names: Sequence[str],
    samples: int,
    side: int | None,
    started: dataset_report.Started,
    progress: Callable[[int], None],
) -> tuple[Path, Conversion]:
    """Stores samples of the script's Dataset in each form that fits; returns the folder and what came of it. `progress`
    gets the number of forms that are begun. Raises `JobError` where no form fits or the script shows no dataset.
    """
    folder = Path(
        tempfile.mkdtemp(prefix=f"plan-{os.getpid()}-", dir=ensure_dir(plans_directory()))
    )
    request = {
        "directory": str(folder),
        "forms": forms.in_request(names),
        "samples": samples,
        "side": side,
    }
    try:
        made = dataset_report.stored(
            command, request, started, lambda: progress(len(list(folder.iterdir())))
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    (folder / ORIGINALS).write_text(
        "\0".join(made.files), encoding="utf-8", errors="surrogateescape"
    )
    return folder, made


def plan_spec(
    command: Sequence[str],
    stored_command: Sequence[str],
    folder: Path,
    made: Conversion,
    *,
    steps: int,
    in_place: bool,
    **rounds: Any,
) -> TournamentSpec:
    """Returns the tournament of a plan; `stored_command`: the command without its secrets. Raises `ConfigError` where
    its trials would read samples twice that a training reads from the drive each time.
    """
    memory = psutil.virtual_memory().total
    known = dict[str, dict[str, Any]]()
    for name, form in made.stored.items():
        total = made.scaled(form.bytes)
        known[name] = {
            "number": form.number,
            "same": form.same,
            "disk_bytes": total,
            "cold": total > memory,
        }
        known[name]["prepare_s"], *known[name]["prepare_s_interval"] = made.convert_s(form)
        known[name]["payload"] = form.payload
    known[forms.AS_IT_IS] = {"cold": made.file_bytes > memory}
    batch = made.loader.get("batch_size") or 1
    if any(form["cold"] for form in known.values()) and steps * batch > made.n:
        if (fit := made.n // batch) < min(FEWEST_STEPS, steps):
            why = "the samples are more than fit in memory, so none may be read twice in a trial; give"
            raise ConfigError(
                "samples", made.n, f"{why} {min(made.samples, FEWEST_STEPS * batch)} or more"
            )
        steps = fit
    conversion = {"folder": str(folder), "n": made.n, "samples": made.samples, "forms": known}
    isolation, layered = ("", ()) if in_place else isolation_of(os.getcwd(), command)
    script = OwnScript(
        tuple(stored_command),
        os.getcwd(),
        ((STORAGE, tuple(made.stored)),),
        isolation=isolation,
        layered=layered,
        conversion=conversion,
    )
    base = own_config("", steps=steps)
    return TournamentSpec(base, (OWN_SCRIPT,), (1,), baseline=UNCHANGED, script=script, **rounds)


def stored_as(script: OwnScript, setting: OwnSetting) -> dict[str, Any] | None:
    """Returns what the Dataset is replaced by, as `vitprof.watch.conversion.StoredSamples` takes it; None without a
    plan, and in its first trial. The script as it is reads the same samples by its own Dataset.
    """
    if (known := script.conversion) is None or not script.loader:
        return None
    form = str(setting.changes.get(STORAGE, forms.AS_IT_IS))
    if not Path(known["folder"]).is_dir():
        raise ConfigError(
            "plan", True, "the samples that it stored are gone: run convert --plan again"
        )
    module = "" if form == forms.AS_IT_IS else forms.FORMS[form].module or form
    stored = {"module": module, "folder": str(Path(known["folder"]) / form)}
    stored |= {name: known[name] for name in ("n", "samples")}
    return stored | {
        name: known["forms"].get(form, {}).get(name) for name in ("number", "same", "cold")
    }


def clear_plans(store: RunStore) -> None:
    """Removes the samples of plans that no tournament will read again, and that no other program is storing."""
    kept = set()
    for each in tournaments.list_tournaments(store):
        if (
            each.status != "done"
            and each.spec.script is not None
            and each.spec.script.conversion is not None
        ):
            kept.add(each.spec.script.conversion["folder"])
    with contextlib.suppress(OSError, ValueError, IndexError):
        for folder in plans_directory().iterdir():
            owner = int(folder.name.split("-")[1])
            if str(folder) not in kept and (owner == os.getpid() or not psutil.pid_exists(owner)):
                shutil.rmtree(folder, ignore_errors=True)


def forget(folder: Path) -> None:
    """Drops the files of a form, or those that the script's own Dataset reads, from the page cache, and checks that by
    mincore. Raises `DataError`.
    """
    from vitprof.engine.locations import pagecache

    paths = [path for path in folder.rglob("*") if path.is_file()]
    if folder.name == forms.AS_IT_IS:
        names = (
            (folder.parent / ORIGINALS)
            .read_text(encoding="utf-8", errors="surrogateescape")
            .split("\0")
        )
        paths = [Path(name) for name in names if name]
    pagecache.drop(paths)


def convert_all(
    command: Sequence[str],
    form: str,
    out: Path,
    side: int | None,
    started: dataset_report.Started,
    progress: Callable[[float], None],
) -> Conversion:
    """Stores all samples in `out`, which is empty or holds an earlier attempt; `progress` gets the share that is done.
    Raises `JobError` and `VitprofError`.
    """
    known = out / "stored.json"
    if out.exists() and not known.exists() and any(out.iterdir()):
        raise ConfigError(
            "out", str(out), "it is not empty; choose a new folder, or one with an earlier attempt"
        )

    def report() -> None:
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads(known.read_text(encoding="utf-8"))
            progress(min(1.0, len(list(out.glob("part-*"))) * facts["part"] / facts["n"]))

    request = {
        "directory": str(out),
        "forms": forms.in_request([form]),
        "samples": None,
        "side": side,
    }
    made = dataset_report.stored(command, request, started, report)
    if why := made.forms[form].why:
        raise VitprofError(f"{form}: {why}")
    return made
