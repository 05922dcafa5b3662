"""Names that people, scripts and files give: which are accepted, and how the others are refused or changed."""

import re
from collections.abc import Sequence

MAX_NAME = 200
"""Length of the longest name that a run or a tournament can have, in characters."""
NAME_CUT = f"cut to the first {MAX_NAME} characters: names are no longer than that"
UNNAMED = "unnamed"
MARK = "\ufffd"
"""Replaces a character that cannot be shown: Unicode's replacement character."""
_HARMFUL = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters; a terminal obeys ESC
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of writing
    "\u2028\u2029\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff"  # line separators, surrogates, noncharacters
)
NOT_SHOWN = re.compile(f"[\t{_HARMFUL}]")
"""Characters that are kept out of stored texts. (What `str.isprintable` says depends on Python's version.)"""
NOT_PRINTED = re.compile(f"[{_HARMFUL}]")
"""Characters that are never sent to a terminal or a page. Tabs are sent."""
SPACE = re.compile("[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]+")
"""Line ends and tabs, which become a space in a name."""


def why_no_name(name: str) -> str:
    """Returns what to give instead of the name that a person gave, worded for a message; "" if the name is fine."""
    if len(name) > MAX_NAME:
        return f"give at most {MAX_NAME} characters"
    # an argument in another encoding; cannot be stored
    if any("\ud800" <= c <= "\udfff" for c in name):
        return "give text in UTF-8"
    if "\n" in name or NOT_SHOWN.search(name):
        return "give one line, without control characters and without signs that turn the direction of writing"
    return ""


def cut_name(name: str) -> str:
    """Returns a name that a person gave, stripped of white space and cut to `MAX_NAME` characters."""
    return name.strip()[:MAX_NAME].rstrip()


def tamed_name(name: str) -> str:
    """Returns a name that nobody typed as it is stored and shown; "" where nothing remains of it.

    Line ends and tabs become a space, characters that cannot be shown `MARK`, and a name that was cut ends
    with "…".
    """
    kept = NOT_SHOWN.sub(MARK, SPACE.sub(" ", name)).strip()
    if len(kept) > MAX_NAME:
        kept = kept[: MAX_NAME - 1].rstrip() + "…"
    return kept


def harmless(text: str) -> str:
    """Returns `text` with `MARK` for characters that a terminal obeys or that change the direction of writing."""
    return NOT_PRINTED.sub(MARK, text.replace("\r\n", "\n"))


MASKED = "***"
"""Replaces a secret."""
_URL = re.compile(r"""(://[^\s:/@"']*):[^\s"']*@|((?:https?|git)://)[^\s/:@"']+@""")
_KNOWN = re.compile(
    r"(?i)\b(bearer|basic) +[\w.~+/=-]{6,}"
    r"|\b()(?-i:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abps]-|AKIA|ASIA|eyJ[\w-]+\.)[\w.-]{10,}"
)
_PAIR = re.compile(
    r"""(?<![\w.-])(?P<name>-{1,2}[A-Za-z][\w.-]*(?=\s)|-*[A-Za-z_][\w.-]*)(?P<gap>["']?\s*[=:]\s*|\s+)"""
    r"""(?P<value>"[^"]*"|'[^']*'|[^\s"'&;,}\])]+)"""
)
_SECRET = re.compile(
    r"(password|passwd|passphrase|secret|credentials?|apikey|authorization|signature|^bearer|^jwt|^sig|pwd|^pw|_pass|^pass)$"
)
_LOGIN = re.compile(r"((?:^|\s)(?:-u|--(?:user|login|auth|userpwd))[ =][^\s:/=]+):(?!\*)\S+")
"""A name with its password, as curl takes them."""
_KEY = re.compile(r"((?:^|\s)--?(?:key|pat|auth)[ =])(?=\S*\d)(?=\S*[A-Za-z])[\w+=-]{12,}")
"""A value that looks like a key."""
_KEYS = re.compile(
    r"(^|_)(api|access|secret|private|auth|account|app|signing|license|wandb|openai|comet|neptune)_key$"
)
_TOKEN = re.compile(
    r"(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!mask_)(?<!cls_)(?<!sep_)(?<!special_)(?<!image_)token$"
)


def _is_secret(name: str) -> bool:
    """Returns whether the value of an option or variable of that name is a secret, by the name's words."""
    if name == "PWD":  # the working directory
        return False
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)  # apiKey: api_Key
    words = re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")
    return any(pattern.search(words) for pattern in (_SECRET, _KEYS, _TOKEN))


def _masked_token(match: re.Match[str]) -> str:
    """Returns the mask of what looks like a token; "Bearer" and the like in front of it stay."""
    return f"{match[1]} {MASKED}" if match[1] else MASKED


def _masked_url(match: re.Match[str]) -> str:
    """Returns the beginning of a URL with a mask for the password; without a name, for what is before @."""
    if match[1]:
        return f"{match[1]}:{MASKED}@"
    return f"{match[2]}{MASKED}@"


def masked(text: str) -> str:
    """Returns `text` with `MASKED` for the values of passwords, tokens and keys, and for passwords in
    URLs.
    """
    text = _KNOWN.sub(_masked_token, text)
    text = _URL.sub(_masked_url, text)
    text = _LOGIN.sub(rf"\1:{MASKED}", text)
    text = _KEY.sub(rf"\1{MASKED}", text)
    shown = ""
    search_from = 0
    shown_to = 0
    while True:
        pair = _PAIR.search(text, search_from)
        if pair is None:
            return shown + text[shown_to:]
        # a value may be the name of the next pair
        search_from = pair.end("gap")
        # "password hunter2" in a sentence is no pair, "--password hunter2" is one
        is_pair = not pair["gap"].isspace() or pair["name"].startswith("-")
        if is_pair and _is_secret(pair["name"]):
            first = pair["value"][0]
            quote = first if first in "\"'" else ""
            shown += f"{text[shown_to:search_from]}{quote}{MASKED}{quote}"
            search_from = pair.end()
            shown_to = pair.end()


def masked_command(command: Sequence[str]) -> tuple[str, ...]:
    """Returns the arguments of a command with `MASKED` for secrets, also where an option has its value
    after it.
    """
    shown = []
    for before, argument in zip(["", *command], command, strict=False):
        name, assigned, value = argument.partition("=")
        is_value = before.startswith("-") and "=" not in before and not argument.startswith("-")
        if is_value and _is_secret(before):
            shown.append(MASKED)
        elif assigned and value and re.fullmatch(r"[\w.+~-]+", name) and _is_secret(name):
            shown.append(f"{name}={MASKED}")
        elif re.fullmatch(r"-u|--?(?:user|login|auth|userpwd|key|pat)", before):
            shown.append(masked(f"{before} {argument}").removeprefix(f"{before} "))
        else:
            shown.append(masked(argument))
    return tuple(shown)
