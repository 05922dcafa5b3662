"""Secrets in commands and texts, and what is shown in place of them.

A secret is known by the name in front of it (`--password X`, `os.environ["HF_TOKEN"] = "X"`), by where
it stands (in the address of a web hook, after the user's name in a URL) or by how it looks (`hf_...`).
Names that say it less clearly (`key=`, `-p`) hide what looks like a secret, so that a reader still
sees `-p 8080`. docs/security.md says what cannot be known.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MASKED = "***"
"""Replaces a secret."""

Kind = Literal["", "secret", "header", "address", "perhaps", "short"]
"""What a name says of its value: "" nothing, "secret" that it is one, "header" that it is one up to
the end of a line, "address" that a URL's path may be one, "perhaps" and "short" (`-p`) that it may be
one."""

# How secrets look, and where they stand.

_STRING = r"""[rRbBfFuU]{0,2}(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
"""A string in code."""
_BY_LOOK = tuple(
    (re.compile(pattern), shown)
    for pattern, shown in (
        # Bearer X; "basic" is a word of prose too
        (r"(?i)\b(bearer) +[\w.~+/=-]{6,}", rf"\1 {MASKED}"),
        (r"\b([Bb]asic) +(?=[a-z+/]*[\dA-Z=])[\w+/=]{6,}", rf"\1 {MASKED}"),
        # tokens of services; sk-learn-classifier is none
        (
            r"\b(?:(?:hf|api_org|gh[oprsu])_[A-Za-z0-9]{16,}|sk-(?=[\w-]*\d)[\w-]{16,}"
            r"|(?:github_pat_|glpat-|xox[abeprs]-|dckr_pat_|nvapi-|wandb_v1_|hvs\.|ATATT3|ya29\."
            r"|dop_v1_|shpat_|[sr]k_(?:live|test)_)[\w.-]{10,}"
            r"|(?:npm_|gsk_|r8_|xai-)[A-Za-z0-9]{20,}|pypi-Ag[\w-]{16,}|SG\.[\w-]{16,}\.[\w-]{16,}"
            r"|(?:AKIA|ASIA)[0-9A-Z]{12,}|AIza[\w-]{12,}|eyJ[\w-]+\.[\w.-]{10,})",
            MASKED,
        ),
        # scheme://user:X@host; github://org:repo@version has no password
        (
            # a port is followed by a path
            r"""((?<!github)://[^\s:/@"']*):(?!\d{1,5}/)(?:[^\s"']*|[^\s/,]*?)@""",
            rf"\1:{MASKED}@",
        ),
        (r"""((?:https?|git)://)[^\s/:@"']+@""", rf"\1{MASKED}@"),
        # addresses to which programs post: whoever knows one can post to it
        (
            r"""(?i)(https?://(?:[\w-]+\.)*(?:(?:web)?hooks?\.[^\s"'/]+|hc-ping\.com|ntfy\.sh)/)"""
            r"""[^\s"']+""",
            rf"\1{MASKED}",
        ),
        (
            r"""(?i)(https?://[^\s"'/]+/(?:[^\s"'/?#]+/)*?(?:(?:incoming|outgoing)-?)?(?:web)?"""
            r"""hooks?(?:b2)?/)[^\s"']+""",
            rf"\1{MASKED}",
        ),
        (r"(/bot)\d+:[\w-]{20,}", rf"\1{MASKED}"),
        (
            r"""(https?://[^\s"']*/(?:key|token|secret|apikey)/)(?=[\w-]*\d)[\w-]{12,}""",
            rf"\1{MASKED}",
        ),
        # curl --user me:X
        (r"((?:^|\s)(?:-u|--(?:user|login|auth|userpwd))[ =][^\s:/=]+):(?!\*)\S+", rf"\1:{MASKED}"),
        # --login me X
        (
            r"((?:^|\s)--?(?:login|auth|basic-?auth|userpass)\s+\w+\s+)"
            r"(?=\S*\d)(?=\S*[A-Za-z])[^\s-]\S*",
            rf"\1{MASKED}",
        ),
        # wandb login X
        (r"(\blogin(?:\s+--?[\w-]+)*\s+)(?=[\w-]*\d)[\w-]{32,}", rf"\1{MASKED}"),
        # auth=("me", "X"), HTTPBasicAuth("me", "X"), server.login("me", "X")
        (
            rf"""((?:\bauth\s*=\s*|Auth|\blogin)\(\s*{_STRING}\s*,\s*)(?:{_STRING})""",
            rf'\1"{MASKED}"',
        ),
        # keyring.set_password("service", "me", "X")
        (
            rf"((?:set|put|add|store)_\w*(?:password|passwd|token|secret|key)\((?:\s*{_STRING}\s*,)*\s*)"
            rf"(?:{_STRING})(?=\s*\))",
            rf'\1"{MASKED}"',
        ),
    )
)

# What names say.

_SECRET = re.compile(
    r"(passwords?|passwort|passwd|passphrase|passcode|pwd|secrets?|credentials?|creds|apikeys?"
    r"|signature|sessid|session_?key|_otp|^otp|^bearer|^jwt|^sig|^pw|_pass|^pass)$"
)
_KEYS = re.compile(
    r"(^|_)(api|access|secret|private|auth|account|app|signing|license|wandb|openai|comet|neptune"
    r"|cipher|consumer|decryption|encryption|hmac|master|subscription)_keys?$"
)
_NUMBERED = re.compile(
    r"(passwords?|passwd|passphrase|api_?key|(?:access|api|auth|bot|hf|github|gitlab)_token"
    r"|secret(?:_key)?)_?(\d+|db|default|dev|main|new|old|plain|prod|read|staging|test|text|value|write)$"
)
_TOKEN = re.compile(r"token$|(^|_)(access|api|auth|bearer|hf|refresh)_tokens$")
_TOKENS_OF_TEXT = re.compile(
    r"(^|_)(additional|audio|begin|blank|bos|class|cls|empty|end|eos|eot|extra|fill|first|image|img"
    r"|last|mask|max|min|n|new|next|null|num|pad|per|placeholder|prev|sep|sot|special|start|stop|unk"
    r"|video|vision)_token$"
)
"""Names of tokens of a text, as tokenizers have them."""
_HEADER = re.compile(r"(authorization|cookies?)$")
_ADDRESS = re.compile(
    r"(^|_)((?:web_?)?hooks?(_(?:url|uri|address|endpoint|link))?"
    r"|(?:slack|discord|teams|mattermost|telegram|notif\w*|callback|ping|heartbeat)"
    r"_(?:url|uri|address|endpoint|link))$"
)
_PERHAPS = re.compile(r"(^|_)(key|pat|auth|sid|session_?id|code|sas)$")
_MANY_MEANINGS = {
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "pass",
    "secret",
    "sig",
    "signature",
    "token",
}
"""Words that name a secret and are words of other things too: without an option's dash in front, what
follows must look like one."""


def _kind_of(name: str) -> Kind:
    """Returns what the name of an option, a variable or a key says of its value."""
    if name == "PWD":  # the working directory
        return ""
    if name in ("-p", "-P"):
        return "short"
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)  # apiKey: api_Key
    words = re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")
    if _HEADER.search(words):
        return "header"
    is_token = _TOKEN.search(words) and not _TOKENS_OF_TEXT.search(words)
    if is_token or any(pattern.search(words) for pattern in (_SECRET, _KEYS, _NUMBERED)):
        return "secret"
    if _ADDRESS.search(words):
        return "address"
    return "perhaps" if _PERHAPS.search(words) else ""


# What values look like.

_PLAIN = re.compile(r"(?i)|true|false|none|null|yes|no|on|off|[01]|\*\*\*")
"""Values that are no secret whatever their name."""
_A_FILE = re.compile(r"[\w./~-]*\w\.(cfg|conf|env|ini|json|key|netrc|pem|toml|txt|ya?ml)")
_URL = re.compile(r"([A-Za-z][\w+.-]*://[^\s/\"']+/?)\S*")
_NUMBERS = re.compile(r"(?=.*\d)[\d.,:eE+%-]+(/(tcp|udp))?")
"""Numbers, ratios, ports: 8080, 0.5, 1e-3, 8080:80, 127.0.0.1:80:80/tcp."""
_A_PATH = re.compile(
    r"[.~]?[\w.-]*/[\w./-]*|~|\.\.?|[\w-]+\.(bin|cfg|ckpt|conf|csv|env|gz|h5|ini|ipynb|jpg|json|log"
    r"|npy|npz|onnx|pid|pkl|png|pth?|py|safetensors|sh|sqlite|tar|toml|txt|ya?ml|zip)"
)
_WORDS = re.compile(
    r"(?i)(bf|fp|f|int|tf|float|uint)\d+([_-]mixed)?|[A-Za-z_]\w*=.*|adamw?|all|auto|base|best|cpu|cuda"
    r"|debug|default|dev|eval|fast|fit|full|gpus?|high|huge|info|large|last|low|main|medium|mixed|mps"
    r"|normal|predict|prod|random|sgd|small|test|tiny|tpu|train|training|tune|val|valid|validation"
)
"""Values that `-p` has in commands of training; a pair such as lr=0.1 has a name of its own."""


def _is_odd(value: str) -> bool:
    """Returns whether a value is neither a number, a path nor a word as people write words."""
    if _NUMBERS.fullmatch(value) or _A_PATH.fullmatch(value):
        return False
    return not re.fullmatch(r"[A-Z]?[a-z]+([ _-][A-Z]?[a-z]+)*", value) or len(value) > 40


def _is_like_a_key(value: str) -> bool:
    """Returns whether a value is a long one, whose letters and digits make no words."""
    if len(value) < 12 or not re.fullmatch(r"[\w+=-]+", value):
        return False
    # imagenet1k changes twice between letters and digits
    pieces = [piece for piece in re.split(r"[_+=-]", value) if len(piece) >= 8]
    changes = r"(?<=\d)(?=[A-Za-z])|(?<=[A-Za-z])(?=\d)"
    return any(len(re.findall(changes, piece)) >= 3 for piece in pieces)


def _masked_value(kind: Kind, value: str) -> str | None:
    """Returns what is shown of the value of a name of that kind; None: all of it."""
    if _PLAIN.fullmatch(value) or _A_FILE.fullmatch(value):
        return None
    if kind == "address":
        url = _URL.fullmatch(value)
        if url:
            return f"{url[1]}{MASKED}"
        return MASKED if _is_like_a_key(value) else None
    if kind == "perhaps":
        return MASKED if _is_like_a_key(value) else None
    if kind == "short":
        is_known = any(p.fullmatch(value) for p in (_NUMBERS, _A_PATH, _WORDS))
        return None if is_known else MASKED
    return MASKED if kind in ("secret", "header") else None


# Short options, whose meaning depends on the program.

_ATTACHED = {
    "7z": "p",
    "7za": "p",
    "curl": "b",
    "http": "a",
    "https": "a",
    "ldapsearch": "w",
    "mariadb": "p",
    "mariadb-dump": "p",
    "mysql": "p",
    "mysqladmin": "p",
    "mysqldump": "p",
    "redis-cli": "a",
    "sshpass": "p",
    "unzip": "P",
    "zip": "P",
}
"""Program -> the letter of the option that takes a password (of curl, cookies), also without a
space."""
_OTHER_MEANING = re.compile(
    "accelerate|cp|declare|docker|git|install|kill|lsof|make|mkdir|mlflow|mpirun|nc|nsys|papermill"
    "|patch|perf|pip|podman|ps|py-spy|pytest|read|rsync|salloc|sbatch|scp|screen|sftp|srun|ssh|tar"
    "|tmux|torchrun|trap"
)
"""Programs in which `-p` is no password, unless they log in."""
_WRAPPERS = re.compile("env|exec|nice|nohup|numactl|setsid|stdbuf|sudo|taskset|time|timeout|xargs")
"""Programs that start the one that is named behind them."""
_SCRIPT = re.compile(r".*\.(py|sh|ipynb)|i?python[\d.]*")


def _program_of(words: Sequence[str]) -> str:
    """Returns the program that an option behind these words of a command belongs to; "" if none."""
    names = [os.path.basename(word) for word in words]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    scripts = [name for name in names if _SCRIPT.fullmatch(name)]
    if scripts:
        return scripts[-1]
    for word, name in zip(words, names, strict=True):
        is_its_own = "=" in word or word.startswith("-") or _NUMBERS.fullmatch(word)
        if not is_its_own and not _WRAPPERS.fullmatch(name):
            return name
    return ""


def _short_kind(letter: str, words: Sequence[str]) -> Kind:
    """Returns the kind of the option of one letter that stands behind these words of a command."""
    program = _program_of(words)
    if _ATTACHED.get(program) == letter:
        return "header" if program == "curl" else "secret"
    if _OTHER_MEANING.fullmatch(program) and "login" not in words:
        return ""
    return "short" if letter in "pP" else ""


def _is_attached(argument: str, words: Sequence[str]) -> bool:
    """Returns whether an argument is an option of one letter with a password right behind it."""
    is_short = re.match(r"-[A-Za-z][^-\s]", argument)
    return bool(is_short) and _short_kind(argument[1], words) in ("secret", "header")


# Texts.

_NAME = re.compile(r"(?:(?<![\w.-])|(?<=%3F)|(?<=%26))-*[A-Za-z_][\w.-]*")
_TYPE = (
    r"(?:typing\.)?(?:Annotated|Any|ClassVar|Final|Optional|SecretStr|bytes|str)\b"
    r"(?:\s*[\[|][\w.|\[\], ]*)?"
)
_ASSIGNS = re.compile(
    rf"""\\*["']?\s*\]?\s*(?::\s*{_TYPE}\s*=(?!=)|:=|=>|[+|]?==?|:(?!//)|%3[DdAa])\s*"""
)
"""What is between a name and its value: `=`, `: `, `"] = `, `: str = `, `": `."""
_SPACE = re.compile(r"\s+")
_NEXT = re.compile(r"""["']\s*,\s*(?=[rRbBfFuU]{0,2}["'])""")
"""What is between a name and its value in a call and in a list: `", `."""
_OPENING = re.compile(r"[(\[,]\s*[rRbBfFuU]{0,2}[\"']$")
_BEFORE_A_BARE_NAME = re.compile(
    r"(?:^|[\s\"'(])(?:--?[A-Za-z][\w-]*[ =]|setenv\s|config(?:ure)?\s+set\s)\s*$"
)
"""An option that takes a name and a value: `--set password X`."""
_BEFORE_A_NAME_ALONE = re.compile(r"(?:^|\s)(-e|-E|--env|--export|--build-arg|--secret)\s+$")
"""An option that takes the name of a variable, and no value: `docker run -e HF_TOKEN image`."""
_QUOTE = re.compile(r"""[rRbBfFuU]{0,2}(?P<quote>\\*(?:\"\"\"|'''|"|'))""")
_AND = re.compile(r"\s*\+?\s*(?=[rRbBfFuU]{0,2}[\"'])")
"""What is between the parts of a string in code."""
_WORD = re.compile(r"""(?:[^\s"'&;,(\[{}\])]|[,}\])](?![\s"']|$|[\w.-]+\s*[=:]))+""")
"""A value without quotes: a bracket or comma at its end belongs to what is around it."""
_GOES_ON = re.compile(r"[\w$%/+~@!#^-]")
"""What, right behind a string, is of the same value: a shell's 'a'bc."""
_TO_THE_END = re.compile(r"""[^"'\n]*""")
_COOKIES = re.compile(r"""[^\s"';]+(?:;\s*[\w.-]+=[^\s"';]+)*""")
_ONE_WORD = re.compile(r"""[^\s"']*""")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class _Value:
    """A value in a text: where it begins and ends, and what of it is the value itself."""

    start: int
    end: int
    text: str
    around: tuple[str, str] = ("", "")
    """What stays in front of the value and behind it: its quotes."""


def masked(text: str) -> str:
    """Returns `text` with `MASKED` for the values of passwords, tokens and keys, and for what in it
    looks like one.
    """
    for pattern, shown in _BY_LOOK:
        text = pattern.sub(shown, text)
    return _without_short(_without_named(text))


def _without_named(text: str) -> str:
    """Returns `text` with a mask for what is named."""
    shown = ""
    shown_to = 0
    for name in _NAME.finditer(text):
        kind = _kind_of(name[0])
        if not kind or kind == "short" or name.start() < shown_to:
            continue
        value = _value_behind(text, name, kind)
        new = None if value is None else _masked_value(kind, value.text)
        if value is not None and new is not None:
            front, back = value.around
            shown += f"{text[shown_to : value.start]}{front}{new}{back}"
            shown_to = value.end
    return shown + text[shown_to:]


def _value_behind(text: str, name: re.Match[str], kind: Kind) -> _Value | None:
    """Returns the value that belongs to a name in a text; None where there is none."""
    assigns = _ASSIGNS.match(text, name.end())
    if assigns:
        to_the_end = kind == "header" and ":" in assigns[0]
        return _value_at(text, assigns.end(), kind, to_the_end=to_the_end)
    before = text[max(0, name.start() - 60) : name.start()]
    following = _NEXT.match(text, name.end())
    if following and before[-1:] in ('"', "'"):
        value = _value_at(text, following.end(), kind)
        opening = _OPENING.search(before)
        is_option = name[0].startswith("-")
        is_call = opening is not None and opening[0][0] != "["
        return value if is_option or is_call or _is_odd(value.text) else None
    space = _SPACE.match(text, name.end())
    if not space:
        return None
    value = _value_at(text, space.end(), kind, is_code=False)
    if value.text.startswith("-") and not _is_like_a_key(value.text[1:]):
        return None
    if name[0].startswith("-"):
        return value
    if _BEFORE_A_NAME_ALONE.search(before):
        return None
    # "password hunter2" in a sentence is no pair; "db.password hunter2" is one
    is_key = bool(re.search(r"\w[._]\w", name[0])) and _is_odd(value.text)
    is_pair = bool(_BEFORE_A_BARE_NAME.search(before)) and _names_alone(name[0], value.text)
    return value if is_key or is_pair else None


def _names_alone(name: str, value: str) -> bool:
    """Returns whether a name without a dash in front names the value behind it as a secret."""
    return name.lower() not in _MANY_MEANINGS or _is_odd(value)


def _value_at(
    text: str, start: int, kind: Kind, *, to_the_end: bool = False, is_code: bool = True
) -> _Value:
    """Returns the value that begins at a place of a text, which may be empty.

    `to_the_end`: without quotes it ends with the line. `is_code`: strings with a space between them
    may be one.
    """
    quoted = _QUOTE.match(text, start)
    without_quotes = {"address": _ONE_WORD, "header": _TO_THE_END if to_the_end else _COOKIES}
    pattern = without_quotes.get(kind)
    if pattern is not None and not quoted:
        found = pattern.match(text, start)
        end = found.end() if found else start
        return _Value(start, end, text[start:end].strip())
    end = _end_of_pieces(text, start, is_code=is_code)
    if not quoted:
        return _Value(start, end, text[start:end])
    quote = quoted["quote"]
    has_end = end - len(quote) >= quoted.end() and text.startswith(quote, end - len(quote))
    back = quote if has_end else ""
    value = text[quoted.end() : end - len(back)]
    return _Value(start, end, value, (text[start : quoted.end()], back))


def _end_of_pieces(text: str, start: int, *, is_code: bool) -> int:
    """Returns where the words, strings and brackets end that follow each other without a space."""
    end = start
    behind_a_string = False
    while end < len(text):
        quoted = _QUOTE.match(text, end)
        if quoted and end > start and text.count(quoted["quote"], 0, start) % 2:
            # it closes what the value is in: bash -c 'export TOKEN=X'
            break
        if quoted is None and behind_a_string and is_code:
            # "X" "Y" and "X" + "Y" are one string
            more = _AND.match(text, end)
            quoted = _QUOTE.match(text, more.end()) if more else None
        if quoted:
            quote = quoted["quote"]
            end = min(_closing_quote(text, quoted.end(), quote) + len(quote), len(text))
            behind_a_string = True
            continue
        if behind_a_string and not _GOES_ON.match(text, end):
            break
        behind_a_string = False
        word = _WORD.match(text, end)
        if word:
            end = word.end()
        elif text[end] in _CLOSING:
            end = _closed_at(text, end)
        else:
            break
    return end


def _closing_quote(text: str, inner: int, quote: str) -> int:
    """Returns where the quote is that closes a string; the text's length where none does."""
    if len(quote) > 1:
        found = text.find(quote, inner)
        return found if found >= 0 else len(text)
    at = inner
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return min(at, len(text))


def _closed_at(text: str, start: int) -> int:
    """Returns where what a bracket opens ends; with the text where nothing closes it."""
    waiting = list[str]()
    at = start
    while at < len(text):
        sign = text[at]
        if sign in "\"'":
            at = _closing_quote(text, at + 1, sign)
        elif sign in _CLOSING:
            waiting.append(_CLOSING[sign])
        elif waiting and sign == waiting[-1]:
            waiting.pop()
            if not waiting:
                return at + 1
        at += 1
    return len(text)


_SHORT = re.compile(r"(?<![^\s\"'(])-(?P<letter>[abpPw])(?P<gap>\s+|=|(?=[^\s-]))(?!-)")
_COMMAND_BEGINS = re.compile(r"[;&|(\n]|: |\bthen\b|\bdo\b")
_LONGEST_LINE = 500
"""Characters in front of an option in which its program is looked for."""


def _without_short(text: str) -> str:
    """Returns `text` with a mask for passwords behind options of one letter."""
    shown = ""
    shown_to = 0
    for option in _SHORT.finditer(text):
        if option.start() < shown_to:
            continue
        kind = _short_kind(option["letter"], _words_before(text, option.start()))
        # -pretrained is an option of another name
        if not kind or (not option["gap"] and kind == "short"):
            continue
        value = _value_at(text, option.end(), kind, is_code=False)
        new = _masked_value(kind, value.text)
        if new is not None:
            front, back = value.around
            shown += f"{text[shown_to : value.start]}{front}{new}{back}"
            shown_to = value.end
    return shown + text[shown_to:]


def _words_before(text: str, place: int) -> list[str]:
    """Returns the words of the command that a place of a text is in, up to there."""
    line = _COMMAND_BEGINS.split(text[max(0, place - _LONGEST_LINE) : place])[-1]
    for quote in "\"'":
        # bash -c 'mysql -p
        if line.count(quote) % 2:
            line = line.rpartition(quote)[2]
    return line.split()


# Commands.


def masked_command(command: Sequence[str]) -> tuple[str, ...]:
    """Returns the arguments of a command with `MASKED` for secrets, also where an option has its
    value after it.
    """
    return tuple(_masked_argument(command, place) for place in range(len(command)))


def _masked_argument(command: Sequence[str], place: int) -> str:
    argument = command[place]
    before = command[place - 1] if place else ""
    new = _masked_behind(command[:place], argument)
    if new is not None:
        return new
    if _is_attached(argument, command[:place]):
        return f"{argument[:2]}{MASKED}"
    name, assigned, value = argument.partition("=")
    if assigned and re.fullmatch(r"[\w.+~-]+", name):
        kind = _kind_of(name)
        if kind == "short":
            kind = _short_kind(name[1], command[:place])
        new = _masked_value(kind, value)
        if new is not None:
            return f"{name}={new}"
    if re.fullmatch(r"-u|--?(?:user|login|auth|userpwd)|login", before):
        return masked(f"{before} {argument}").removeprefix(f"{before} ")
    return masked(argument)


def _masked_behind(words: Sequence[str], argument: str) -> str | None:
    """Returns what is shown of an argument as the value of the one in front of it; None where it is
    no secret by that.
    """
    before = words[-1] if words else ""
    # "-x" may be a value as well; a token may begin so
    if "=" in before or (argument.startswith("-") and not _is_like_a_key(argument[1:])):
        return None
    if re.fullmatch(r"-[A-Za-z]", before):
        return _masked_value(_short_kind(before[1], words[:-1]), argument)
    if before.startswith("-"):
        return _masked_value(_kind_of(before), argument)
    option = words[-2] if len(words) > 1 else ""
    if re.fullmatch(r"--?(login|auth|basic-?auth|userpass)", option) and _is_odd(argument):
        return MASKED
    # --set password X, and DB.PASSWORD X in a list of names and values
    is_name = re.fullmatch(r"[A-Za-z_][\w.]*", before)
    if not is_name or _BEFORE_A_NAME_ALONE.search(f"{option} "):
        return None
    kind = _kind_of(before)
    is_pair = kind in ("secret", "header") and _names_alone(before, argument)
    has_many_words = option.startswith("-") or re.search(r"[._]|^[A-Z]+$", before)
    if is_pair and (has_many_words or _is_odd(argument)):
        return _masked_value(kind, argument)
    return None
