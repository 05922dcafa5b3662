"""Numbers and names beyond all use, as options of commands: status 2 and one line, and nothing was begun."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.stored_runs import add
from tests.command_line import Call, one_line, succeeds
from vitprof.names import MARK
from vitprof.store import RunQuery, RunStore

MUCH = "99999999999999999999"
ECHO = ("--", sys.executable, "-c", "print('begun')")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--workers", MUCH),
        ("run", "--lr", "1e300"),
        ("watch", "--steps", MUCH, *ECHO),
        ("watch", "--steps", "0", *ECHO),
        ("watch", "--detach-after", MUCH, *ECHO),
        ("runs", "--limit", MUCH),
        ("runs", "--page", "0"),
        ("runs", "--text", "a" * 100_000),
        ("runs", "--text", "a b " * 25_000),
        ("runs", *(f"--tag={n}" for n in range(101))),
        ("check", "1", "--max-idle", "1e400%"),
        ("check", "1", "--max-idle", MUCH),
        ("check", "1", "--min-samples-per-s", "1e300"),
        ("check", "1", "--against", "1", "--max-slowdown", "101%"),
        ("headroom", "1", "--repeats", MUCH),
        ("predict", "1", "--seconds", "1e300"),
        ("strategies", "--n-images", MUCH),
        ("tournament", "--strategies", "memory", "--time", "1e300"),
        *[
            ("tournament", "--strategies", "memory", f"--{name}", value)
            for name in ("repeats", "time", "batch-sizes", "workers")
            for value in (MUCH, "1000000000000", *([f"1,{MUCH}"] if name in ("batch-sizes", "workers") else []))
        ],
        ("tournament", "--strategies", "memory", "--batch-sizes", ",".join(map(str, range(1, 5000)))),
        ("tournament", "--auto", "--strategies", "memory", "--time", "1e300"),
        ("tournament", "--auto", "--strategies", "memory", "--batch-sizes", ",".join(map(str, range(1, 5000)))),
        ("tournament", "--vary", f"workers={MUCH}", *ECHO),
        ("tournament", "--vary", "workers=" + ",".join(map(str, range(5000))), *ECHO),
        ("--port", MUCH),
        ("open", "--port", MUCH),
        ("run", "--name", "\x1b[2J"),
        ("watch", "--name", "\u202ered", *ECHO),
        ("tournament", "--name", "two\nlines", "--strategies", "memory"),
        ("x" * 100_000,),
    ],
    ids=lambda arguments: " ".join(arguments)[:40].encode("ascii", "backslashreplace").decode(),
)
def test_what_no_run_needs_is_one_short_line(call: Call, vitprof_home: Path, arguments: tuple[str, ...]) -> None:
    err = one_line(call, *arguments)
    assert len(err) < 1_100
    assert err.removesuffix("\n").isprintable()
    if vitprof_home.exists():
        with closing(RunStore()) as store:
            assert not store.count_runs(RunQuery(helpers=True))


def test_what_an_older_version_stored_does_nothing_to_a_terminal(call: Call, mine: RunStore) -> None:
    run = add(mine)
    mine.update_run(run, name="a\nb \x1b[2J\u202ec", error="\x1b]0;title\a", notices=["bell\a"])
    for arguments in (("runs",), ("runs", str(run))):
        out = succeeds(call, *arguments)
        assert f"a b {MARK}[2J{MARK}c" in out
        assert all(c.isprintable() for c in out.replace("\n", ""))
    assert call("runs", "--json")[1].isascii()
