"""Settings of a user's own script in words, and as a line of code to paste."""

from __future__ import annotations

from vitprof.config.own_script import OWN_SCRIPT
from vitprof.config.own_script_trials import ARGUMENTS, UNCHANGED, OwnScript, settings_of

AS_IT_IS = "the script as it is"
KEEP_SAMPLES = "keep the Dataset's samples in memory after their first reading"
SWITCHED = {
    "pin_memory": {"on": "pinned", "off": "not pinned"},
    "persistent_workers": {"on": "persistent workers", "off": "workers started each epoch"},
    "decode_cache": {"ram": "samples kept in RAM"},
}


def is_own_key(key: str) -> bool:
    """Returns whether a trial's key is that of a setting of a user's own script."""
    return key.startswith(f"{OWN_SCRIPT}/")


def own_key_in_words(key: str) -> str:
    """Returns "own-script/workers=4/pin_memory=on" as "4 workers, pinned"; any other text unchanged."""
    if key == UNCHANGED:
        return AS_IT_IS
    said = []
    for part in key.split("/")[1:]:
        name, separator, value = part.partition("=")
        if not separator:
            return key
        said.append(_in_words(name, value))
    return ", ".join(said) or key


def _in_words(name: str, value: str) -> str:
    match name:
        case "workers":
            return "1 worker" if value == "1" else f"{value} workers"
        case "prefetch_factor":
            return f"prefetch {value}"
        case "batch_size":
            return f"batch {value}"
        case _:
            return SWITCHED.get(name, {}).get(value, value)


def code_line(script: OwnScript, key: str) -> str:
    """Returns a setting as one line of code, `DataLoader(..., num_workers=4)`; "" for the script as it is.

    An argument that the script gives but the setting does not allow gets the value that means the same as no argument.
    """
    setting = next((s for s in settings_of(script) if s.key == key), None)
    if setting is None or not setting.changes:
        return ""
    given = str((script.loader or {}).get("made_given") or "").split()
    wanted = {*given, *(ARGUMENTS[name] for name in setting.changes if name in ARGUMENTS)}
    told = [f"{name}={value!r}" for name, value in setting.arguments.items() if name in wanted]
    line = f"DataLoader(..., {', '.join(told)})" if told else ""
    if not setting.keeps_samples:
        return line
    return f"{line}  # and {KEEP_SAMPLES}" if line else f"# {KEEP_SAMPLES}"
