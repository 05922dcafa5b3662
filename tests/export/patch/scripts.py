"""A user's script in a folder, with what the first trial of a tournament on it noted of its train loader."""

from pathlib import Path
from typing import Any

from vitprof.config.own_script import OwnScript, settings_of
from vitprof.config.varied import OF_A_SCRIPT, read_varied
from vitprof.export.patch import Patch, make_patch
from vitprof.export.patch.script_file import digest_of

LOADER: dict[str, Any] = {
    "num_workers": 0,
    "prefetch_factor": None,
    "pin_memory": False,
    "persistent_workers": False,
    "start_method": None,
    "batch_size": 8,
    "n_samples": 800,
    "made_by_script": True,
    "made_alone": True,
}


def facts(source: bytes, given: str, *, name: str = "train.py", **more: Any) -> dict[str, Any]:
    """What is noted of the loader that the first line with `DataLoader(` made; `more` are other facts.

    `given`: the names of the arguments that the call gave, besides the dataset.
    """
    lines = source.split(b"\n")
    line = next((n for n, text in enumerate(lines, 1) if b"DataLoader(" in text), 1)
    made = {
        "made_where": f"{name}:{line}",
        "made_digest": digest_of(source),
        "made_given": given,
    }
    return LOADER | made | more


def own_script(
    folder: Path, source: bytes, given: str, *vary: str, name: str = "train.py", **more: Any
) -> OwnScript:
    """Writes the script and returns it, with the settings that a tournament varies."""
    (folder / name).write_bytes(source)
    varied = tuple(read_varied(text, OF_A_SCRIPT) for text in vary)
    loader = facts(source, given, name=name, **more)
    return OwnScript(("python", name), str(folder), varied, loader)


def patch_of(script: OwnScript, line: int | None = None) -> Patch:
    """The patch for its last setting."""
    return make_patch(script, settings_of(script)[-1].key, line)


def changed_lines(patch: Patch) -> list[bytes]:
    """The lines that a diff takes out and puts in, without its headers."""
    lines = patch.diff("train.py").split(b"\n")
    return [line for line in lines[2:] if line.startswith((b"-", b"+"))]
