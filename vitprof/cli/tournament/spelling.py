"""The short spellings of `tournament script` and `tournament resume`, which name neither."""

from collections.abc import Sequence

COMMANDS = ("script", "resume")
RESUME = "--resume"


def in_full(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of vitprof, with the command of `tournament` that a short spelling means.

    `tournament --vary workers=0,2 -- python train.py` is `tournament script --vary ...`, and
    `tournament --resume 7 --yes` is `tournament resume 7 --yes`.
    """
    if list(arguments[:1]) != ["tournament"]:
        return list(arguments)
    own, command = _divided(arguments[1:])
    # "script" may be a value, as in --name script; then the whole spelling is needed
    if any(word in COMMANDS for word in own):
        return list(arguments)
    resumed = _resumed(own)
    if resumed is not None:
        return ["tournament", "resume", *resumed, *command]
    if command:
        return ["tournament", "script", *own, *command]
    return list(arguments)


def _divided(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the words before `--`, and the rest from there on: a script's command, which is not ours."""
    if "--" not in words:
        return list(words), []
    at = words.index("--")
    return list(words[:at]), list(words[at:])


def _resumed(words: Sequence[str]) -> list[str] | None:
    """Returns the id that `--resume` names, and then the other words; None without `--resume`."""
    for at, word in enumerate(words):
        option, separator, value = word.partition("=")
        if option != RESUME:
            continue
        before = list(words[:at])
        if separator:
            return [value, *before, *words[at + 1 :]]
        after = list(words[at + 1 :])
        return [*after[:1], *before, *after[1:]]
    return None
