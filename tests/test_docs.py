"""README and docs/: what they link to is there, and what they say to type does what they say."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from docs import reference, seen
from tests import ROOT
from tests.cli.test_check import add
from tests.command_line import Call
from tests.engine_fixtures import small_home  # noqa: F401
from vitprof.analysis.verdict import answer, rendering
from vitprof.cli import app
from vitprof.cli.tournament.spelling import in_full
from vitprof.store import RunStore

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
README_WORDS = 1000
CHANGES_LINES = 25
GUIDE_WORDS = 900
NAMED_IN_CODE = re.compile(r"\bdocs/[\w/-]+\.md")
READ_FROM_ENVIRONMENT = re.compile(r"""["'](VITPROF_[A-Z_]+)["']""")
BETWEEN_PROCESSES = re.compile(
    r"VITPROF_(WATCH_|RUN_CODE|ENDS_WITH|SHOWN_AS|CALLED_AS|NODE$|RANK$|OWNER$)"
)
"""Variables that vitprof sets for processes of its own: nobody types them."""
A_NAME = re.compile(r"[A-Z]{3}|\.\.\.|\$|^vitprof( -|$| run 12:)")
"""What stands for something else in a command, and lines that are no command of the command line's."""


def typed(page: Path) -> Iterator[str]:
    """Yields the commands of vitprof's that a page shows, in a block of their own or within a sentence."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"^ {4,}(vitprof(?: .*)?)$", text, re.MULTILINE):
        yield line.split("  #")[0].strip()
    for code in re.findall(r"`(vitprof\s[^`]*)`", text):
        yield " ".join(code.split())


COMMANDS = sorted({line for page in PAGES for line in typed(page) if not A_NAME.search(line)})
SHORT = [
    "--threads",
    "1",
    "--device",
    "cpu",
    "--isolation",
    "thread",
    "--steps",
    "3",
    "--no-evaluate",
]
RUN_HERE: dict[str, list[str]] = {
    "vitprof run --strategy memory --batch-size 512 --steps 50": SHORT,
    "vitprof runs --text memory --sort samples_per_s": [],
    "vitprof runs 1": [],
    "vitprof check 12 --max-idle 10% --min-samples-per-s 900": [],
    "vitprof bundle 9 10 11 --output main.vitprof": [],
    "vitprof check 12,13,14 --against 9,10,11 --max-slowdown 5%": [],
    "vitprof check 12 --against main.vitprof --max-slowdown 5% --junit vitprof.xml": [],
    "vitprof check 3 --max-idle 10% --against 1,2 --max-slowdown 5%": [],
    "vitprof bundle 1 2 3 --output mine.vitprof": [],
    "vitprof export 1 2 --format html --output report.html": [],
    "vitprof export 1 2 --format steps-csv --output steps.csv": [],
    "vitprof delete 1": [],
    "vitprof import mine.vitprof": [],
    "vitprof strategies": [],
    "vitprof code --strategy hdf5 --output train_hdf5.py": [],
    "vitprof runs": [],
    "vitprof runs --tag kept --json": [],
    "vitprof top": [],
    "vitprof top --once": [],
}
"""Commands that are run as the pages have them, in this order, with what makes their jobs short."""
RUN_ELSEWHERE = {
    "prune": "runs",
    "demo": "dashboard",
    "open": "dashboard",
    "selftest": "doctor",
}
"""The rest take seconds: the tests of tests/cli that run these commands, where they are not called after them."""


def test_every_link_leads_to_a_file_and_every_benchmark_named_is_there() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for page, text in texts.items():
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert target.startswith("http") or (page.parent / target).is_file(), target
    named = {name for text in texts.values() for name in re.findall(r"benchmarks\.(\w+)", text)}
    assert named
    assert all((ROOT / "benchmarks" / f"{name}.py").is_file() for name in named), named


def n_words(page: Path) -> int:
    """Returns the number of words of a page, without output and the bars between the cells of tables."""
    text = re.sub(r"```text\n.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return len(text.replace("|", " ").split())


def test_what_is_read_first_is_short() -> None:
    assert n_words(README) <= README_WORDS
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= CHANGES_LINES
    for page in GUIDE:
        assert n_words(page) <= GUIDE_WORDS, page.name


def test_a_guide_begins_with_a_command_and_ends_with_what_one_sees() -> None:
    assert len(GUIDE) == 7
    for page in GUIDE:
        text = page.read_text(encoding="utf-8")
        assert re.match(r"# .+\n\n    vitprof", text), page.name
        last = text.rpartition("\n## ")[2]
        assert last.startswith("What you see\n"), page.name
        assert re.search(r"^(```text|\| )", last, re.MULTILINE), page.name


def test_the_causes_in_the_guide_are_called_as_they_are_shown() -> None:
    """Its table said "dataset" where page and terminal said "reading"."""
    text = (ROOT / "docs" / "guide" / "slow-loader.md").read_text(encoding="utf-8")
    table = [line.split("|")[1] for line in text.splitlines() if line.startswith("| *")]
    named = {word for cell in table for word in re.findall(r"\*([^*]+)\*", cell)}
    shown = {*answer.PART_WORDS.values(), *answer.READS.values(), answer.UNCLEAR}
    headlines = {*rendering.HEADLINES.values(), rendering.NOT_MEASURABLE, "Not input-bound"}
    of_charts = {"These shares are not reliable"}
    assert len(named) > 10
    assert named <= shown | headlines | of_charts
    assert set(answer.READS.values()) <= named


def test_what_one_sees_replaces_blocks_of_the_last_section_in_their_order() -> None:
    guide = "```text\nstays\n```\n## What you see\n\n```text\na\n```\nand\n```text\nb\n```\n"
    shown = seen.replaced("# A\n" + guide, ["$ a\n1\n"])
    assert shown == "# A\n" + guide.replace("\na\n", "\n$ a\n1\n")
    for name, blocks in seen.SEEN.items():
        text = (ROOT / "docs" / "guide" / name).read_text(encoding="utf-8")
        found = seen.BLOCK.findall(text.rpartition(seen.SECTION)[2])
        assert [block.partition("\n")[0] for block in found] == [f"$ {line}" for line in blocks]


def test_the_reference_is_up_to_date() -> None:
    assert reference.outdated() == [], "type: python -m docs.reference"


def test_every_page_that_the_code_names_is_there() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "vitprof").rglob("*.py")]
    named = {name for text in texts for name in NAMED_IN_CODE.findall(text)}
    assert "docs/formats.md" in named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_variable_that_a_person_may_set_has_a_row() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "vitprof").rglob("*.py")]
    read = {name for text in texts for name in READ_FROM_ENVIRONMENT.findall(text)}
    for_people = {name for name in read if not BETWEEN_PROCESSES.match(name)}
    assert {"VITPROF_HOME", "VITPROF_TOKEN", "VITPROF_WARM"} <= for_people
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    assert {name for name in for_people if f"`{name}`" not in page} == set()


@pytest.mark.measured
def test_the_site_is_whole(tmp_path: Path) -> None:
    """MkDocs ends with an error where a link or an anchor leads nowhere, or a page is in no menu."""
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "--site-dir", str(tmp_path / "site")]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(build, cwd=ROOT, env=quiet, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    for path in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(
            r"""<(?:script|link|img)[^>]+(?:src|href)=["'](https?://[^"']+)""", path.read_text()
        )
        assert not fetched, "a page of the site needs no network"


def test_every_command_is_accepted_and_run_here_or_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.vitprof").touch()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(RUN_HERE) <= set(COMMANDS)
    for line in COMMANDS:
        word, *arguments = in_full(shlex.split(line)[1:])
        if arguments and "--help" not in arguments:
            command = commands[word]
            of_group = getattr(command, "commands", {})
            if arguments[0] in of_group:
                command = of_group[arguments.pop(0)]
            # raises where an option or a value is none of its
            command.make_context(word, arguments)
        tests = ROOT / "tests" / "cli" / f"test_{RUN_ELSEWHERE.get(word, word)}.py"
        assert line in RUN_HERE or word == "code" or tests.exists(), line


@pytest.mark.usefixtures("small_home")
def test_commands_do_what_the_pages_say(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = RunStore()
    for _ in range(14):
        add(store, wait_s=0.0001)
    store.close()
    for line, more in RUN_HERE.items():
        status, out, err = call(*shlex.split(line)[1:], *more)
        assert status == 0, (line, out, err)
        if "--output" in line:
            assert (tmp_path / line.split()[-1]).stat().st_size > 0, line
