"""Plans to convert the samples of a user's own script.

Some of them are stored in each form that fits, and the script is run on each, as a tournament.
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

from vitprof.config import forms
from vitprof.config.own_script import (
    OWN_SCRIPT,
    UNCHANGED,
    OwnScript,
    OwnSetting,
    own_config,
)
from vitprof.config.tournament_spec import TournamentSpec
from vitprof.config.varied import STORAGE
from vitprof.errors import ConfigError, VitprofError
from vitprof.experiments.script_data import first_step
from vitprof.experiments.script_data.stored_forms import Conversion
from vitprof.forms.description import DESCRIPTION, LOCK, UNFINISHED
from vitprof.home import ensure_dir, home
from vitprof.jobs.trial_folder import IN_PLACE, Isolation, isolation_of
from vitprof.store import RunStore, tournaments

ORIGINALS = "originals.txt"
"""The names of the files that the samples of a plan were read from, with NUL between them."""
FEWEST_STEPS = 40
"""The fewest steps of a trial in which no sample may be read twice: the first ones are warm-up, and 20
give an interval."""


def plans_directory() -> Path:
    return home() / "converted"


def store_samples(
    command: Sequence[str],
    names: Sequence[str],
    samples: int,
    side: int | None,
    started: first_step.Started,
    progress: Callable[[int], None],
) -> tuple[Path, Conversion]:
    """Stores samples of the script's Dataset in each form that fits; returns the folder and the outcome.

    `progress` is called with the number of forms that are begun. Raises `JobError` where no form fits
    or the script shows no dataset.
    """
    # with the process id, by which `clear_plans` knows whether anybody is storing into it
    prefix = f"plan-{os.getpid()}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=ensure_dir(plans_directory())))
    request = {
        "directory": str(folder),
        "forms": list(names),
        "samples": samples,
        "side": side,
    }

    def report() -> None:
        progress(len(list(folder.iterdir())))

    try:
        made = first_step.stored(command, request, started, report)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    originals = "\0".join(made.files)
    # names of files need not be UTF-8
    (folder / ORIGINALS).write_text(originals, encoding="utf-8", errors="surrogateescape")
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
    """Returns the tournament of a plan; `stored_command`: the command without its secrets.

    Raises `ConfigError` where its trials would read samples twice that a training reads from the drive
    each time.
    """
    memory_bytes = psutil.virtual_memory().total
    form_facts = dict[str, dict[str, Any]]()
    for name, form in made.stored.items():
        # all samples in this form; what does not fit in memory is read from the drive in each epoch
        disk_bytes = made.scaled(form.bytes)
        prepare_s, *interval = made.convert_s(form)
        form_facts[name] = {
            "number": form.number,
            "same": form.same,
            "disk_bytes": disk_bytes,
            "cold": disk_bytes > memory_bytes,
            "prepare_s": prepare_s,
            "prepare_s_interval": interval,
            "payload": form.payload,
        }
    form_facts[forms.AS_IT_IS] = {"cold": made.file_bytes > memory_bytes}
    batch = made.loader.get("batch_size") or 1
    reads_cold = any(facts["cold"] for facts in form_facts.values())
    if reads_cold and steps * batch > made.n:
        steps_once = made.n // batch
        if steps_once < min(FEWEST_STEPS, steps):
            why = "the samples are more than fit in memory, so none may be read twice in a trial"
            least = min(made.samples, FEWEST_STEPS * batch)
            raise ConfigError("samples", made.n, f"{why}; give {least} or more")
        steps = steps_once
    kept_by = Isolation(IN_PLACE) if in_place else isolation_of(os.getcwd(), command)
    script = OwnScript(
        tuple(stored_command),
        os.getcwd(),
        ((STORAGE, tuple(made.stored)),),
        isolation=kept_by.kind,
        layered=kept_by.layered,
        links_out=kept_by.links_out,
        open_places=kept_by.open_places,
        conversion={
            "folder": str(folder),
            "n": made.n,
            "samples": made.samples,
            "forms": form_facts,
        },
    )
    base = own_config("", steps=steps)
    return TournamentSpec(base, (OWN_SCRIPT,), (1,), baseline=UNCHANGED, script=script, **rounds)


def stored_as(script: OwnScript, setting: OwnSetting) -> dict[str, Any] | None:
    """Returns what the Dataset is replaced by, as `vitprof.watch.stored_samples` takes it.

    None without a plan, and in its first trial. The script as it is reads the same samples by its own
    Dataset. Raises `ConfigError` where the stored samples are gone.
    """
    conversion = script.conversion
    if conversion is None or not script.loader:
        return None
    form = str(setting.changes.get(STORAGE, forms.AS_IT_IS))
    folder = Path(conversion["folder"])
    if not folder.is_dir():
        raise ConfigError(
            "plan", True, "the samples that it stored are gone: run convert --plan again"
        )
    form_facts = conversion["forms"].get(form, {})
    return {
        "form": "" if form == forms.AS_IT_IS else form,
        "folder": str(folder / form),
        "n": conversion["n"],
        "samples": conversion["samples"],
        "number": form_facts.get("number"),
        "same": form_facts.get("same"),
        "cold": form_facts.get("cold"),
    }


def clear_plans(store: RunStore) -> None:
    """Removes the samples of plans that no tournament will read again, and that no other program is storing."""
    needed = set()
    for each in tournaments.list_tournaments(store):
        script = each.spec.script
        if each.status != "done" and script is not None and script.conversion is not None:
            needed.add(script.conversion["folder"])
    with contextlib.suppress(OSError, ValueError, IndexError):
        for folder in plans_directory().iterdir():
            owner = int(folder.name.split("-")[1])
            stored_by_another = owner != os.getpid() and psutil.pid_exists(owner)
            if str(folder) not in needed and not stored_by_another:
                shutil.rmtree(folder, ignore_errors=True)


def forget(folder: Path) -> None:
    """Drops the files of a form, or those that the script's own Dataset reads, from the page cache.

    Checks by mincore that they are gone from it. Raises `DataError`.
    """
    from vitprof.engine.locations import pagecache

    if folder.name == forms.AS_IT_IS:
        originals = folder.parent / ORIGINALS
        names = originals.read_text(encoding="utf-8", errors="surrogateescape").split("\0")
        paths = [Path(name) for name in names if name]
    else:
        paths = [path for path in folder.rglob("*") if path.is_file()]
    pagecache.drop(paths)


def _names_in(out: Path) -> set[str]:
    """Returns what is in the folder for the samples, which need not exist yet. Raises `ConfigError`."""
    try:
        return {path.name for path in out.iterdir()}
    except FileNotFoundError:
        return set()
    except NotADirectoryError:
        raise ConfigError(
            "out", str(out), "there is a file in its place; choose a folder"
        ) from None
    except OSError as error:
        raise ConfigError("out", str(out), f"it cannot be read ({error.strerror})") from error


def convert_all(
    command: Sequence[str],
    form: str,
    out: Path,
    side: int | None,
    started: first_step.Started,
    progress: Callable[[float], None],
) -> Conversion:
    """Stores all samples in `out`, which is empty or holds an earlier attempt.

    `progress` is called with the share that is done, 0 to 1. Raises `JobError` and `VitprofError`.
    """
    description = out / DESCRIPTION
    of_an_attempt_that_stored_nothing = {LOCK, UNFINISHED}
    found = _names_in(out)
    if found - of_an_attempt_that_stored_nothing and not description.exists():
        raise ConfigError(
            "out", str(out), "it is not empty; choose a new folder, or one with an earlier attempt"
        )

    def report() -> None:
        # the description may not be there yet
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads(description.read_text(encoding="utf-8"))
            n_stored = len(list(out.glob("part-*"))) * facts["part"]
            progress(min(1.0, n_stored / facts["n"]))

    request = {
        "directory": str(out),
        "forms": [form],
        "samples": None,
        "side": side,
    }
    made = first_step.stored(command, request, started, report)
    why_not = made.forms[form].why
    if why_not:
        raise VitprofError(f"{form}: {why_not}")
    return made
