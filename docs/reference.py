"""Writes the parts of the reference that follow from code: `python -m docs.reference`. `--check` only compares them.

A part stands between two comments in its page: what is around it is written by hand.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from vitprof.cli import app
from vitprof.config.strategies import STRATEGIES

DOCS = Path(__file__).parent
BEGIN = "<!-- made by `python -m docs.reference`: {} -->"
END = "<!-- made: end -->"


def commands() -> str:
    """Returns a list of all commands, in the groups of `vitprof --help`: a link to the options of each, and the
    first sentence of its help."""
    by_group: dict[str, list[str]] = {}
    for name, command in _all_commands():
        line = f"* [`{name}`](#{_anchor(name)}): {_text(_first_sentence(command.help))}"
        by_group.setdefault(_group(name), []).append(line)
    lines = []
    for group, listed in by_group.items():
        if group:
            lines += [f"**{group}**", ""]
        lines += [*listed, ""]
    return "\n".join(lines).rstrip()


def options() -> str:
    """Returns a section for each command: its help, and lists of its arguments and options.

    An option is described once. A later command that has the very same one, with the same help and
    default, only names it: without that, half of the page is `run` again.
    """
    described: dict[str, str] = {}
    sections = [_section(name, command, described) for name, command in _all_commands()]
    return "\n\n".join(sections)


def strategies() -> str:
    """Returns a table of the strategies: what each does, when it helps, what it costs."""
    lines = ["| strategy | what it does | when it helps | what it costs |", "|---|---|---|---|"]
    for strategy in STRATEGIES.values():
        cells = (strategy.what, strategy.when, strategy.costs)
        lines.append(f"| `{strategy.name}` | {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


MADE: dict[str, dict[str, Callable[[], str]]] = {
    "command-line.md": {"commands": commands, "options": options},
    "strategies.md": {"strategies": strategies},
}
"""Page -> the parts of it that are made."""


def made(page: str) -> str:
    """Returns the text of a page with its parts as they should be."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for part, make in MADE[page].items():
        begin = BEGIN.format(part)
        before, _, rest = text.partition(begin)
        _, end, after = rest.partition(END)
        if not end:
            raise ValueError(f"{page} lacks {begin} or the {END} after it")
        text = f"{before}{begin}\n\n{make()}\n\n{END}{after}"
    return text


def outdated() -> list[str]:
    """Returns the pages that are not as they should be."""
    return [page for page in MADE if (DOCS / page).read_text(encoding="utf-8") != made(page)]


def _all_commands() -> Iterator[tuple[str, Any]]:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        if command.hidden:
            continue
        of_group = getattr(command, "commands", {})
        if command.params or not of_group:
            yield name, command
        for word, inner in of_group.items():
            yield f"{name} {word}", inner


def _group(name: str) -> str:
    """Returns the heading under which `vitprof --help` lists a command, empty where it has none."""
    command = typer.main.get_command(app).commands[name.partition(" ")[0]]  # type: ignore[attr-defined]
    panel = command.rich_help_panel
    # without a group Typer has an object here that stands for none
    return panel if isinstance(panel, str) else ""


def _section(name: str, command: Any, described: dict[str, str]) -> str:
    """Returns the section of a command.

    Args:
        name: the command, as it is typed.
        command: the command, as click has it.
        described: line of an option -> the command that describes it. New lines of this command are added.
    """
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    others = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join(
        ["vitprof", name, *(["[OPTIONS]"] if others else []), *map(_metavar, arguments)]
    )
    lines = [f"### vitprof {name}", "", _text(command.help)]
    if arguments:
        lines += ["", f"    {usage}"]
    items = [f"* `{_metavar(one)}`: {_text(one.help or '')}" for one in arguments]
    elsewhere: dict[str, list[str]] = {}
    panel = None
    for one in others:
        item = f"* {_option(one)}{_default(one)}: {_text(one.help or '')}"
        first = described.setdefault(item, name)
        if first != name:
            elsewhere.setdefault(first, []).append(f"`{one.opts[0]}`")
            continue
        if one.rich_help_panel and one.rich_help_panel != panel:
            items += ["", f"**{one.rich_help_panel}**", ""]
        panel = one.rich_help_panel
        items.append(item)
    lines += ["", *items] if items else []
    for first, names in elsewhere.items():
        lines += ["", f"As in [`{first}`](#{_anchor(first)}): {', '.join(names)}."]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _anchor(name: str) -> str:
    """Returns where the page has the section of a command."""
    return f"vitprof-{name}".replace(" ", "-")


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option(option: Any) -> str:
    words = ", ".join(f"`{one}`" for one in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return words
    return f"{words} `{_value(option)}`"


def _value(option: Any) -> str:
    """Returns what stands for the option's value."""
    if option.metavar:
        return _text(option.metavar)
    return "FILE" if "file" in (option.help or "").split() else "TEXT"


def _default(option: Any) -> str:
    """Returns the default in brackets, empty where there is none or where it is known only when the command runs."""
    if option.is_flag or callable(option.default) or option.default in (None, "", (), []):
        return ""
    return f" (default `{_text(str(option.default))}`)"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]


def _text(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def main() -> int:
    """Writes the pages, or with `--check` names those that are outdated."""
    pages = outdated()
    if "--check" in sys.argv[1:]:
        for page in pages:
            sys.stdout.write(f"docs/{page} is outdated: python -m docs.reference\n")
        return 1 if pages else 0
    for page in pages:
        (DOCS / page).write_text(made(page), encoding="utf-8")
        sys.stdout.write(f"docs/{page} written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
