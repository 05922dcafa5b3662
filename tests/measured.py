"""The lane `measured`: tests that hold real processes against real clocks.

    python -m tests.measured            # with the rule below; what CI runs
    python -m pytest -m measured        # each test once

**The rule.** A test that fails is run again, alone and in a new process, so that no fixture of the
failed try is used again. It fails the lane when it has failed `TRIES` times in a row. A correct program
that fails a test by chance with probability p a try then fails it with p^3: with p = 2% and 300 tests
the lane fails by chance in 0.24% of its runs. The price: a fault that shows in a share q of all tries
goes unseen with probability 1 - q^3. So what passed in a later try is printed, and is to be looked at.
"""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests import ROOT

TRIES = 3
PHASES = (
    ("measured and not alone", ("-n", "3", "--dist", "loadfile")),
    ("measured and alone", ()),
)
"""Expressions of markers, and how pytest is to run those tests: what takes the whole machine has it."""
FAILED, NO_TESTS = 1, 5
"""Exit statuses of pytest: tests failed; none was collected."""


@dataclass(frozen=True)
class Try:
    """How one run of pytest ended."""

    status: int
    failed: tuple[str, ...]
    """The tests that failed, as pytest takes them on its command line."""

    @property
    def passed(self) -> bool:
        return self.status in (0, NO_TESTS)


def failed_in(report: Path) -> tuple[str, ...]:
    """Returns the tests that a JUnit report names as failed, or as ended by an error."""
    failed = []
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(node_id(case.get("classname", ""), case.get("name", "")))
    return tuple(sorted(set(failed)))


def node_id(classname: str, name: str) -> str:
    """Returns `tests/a/test_b.py::TestC::test_d[e]` for `tests.a.test_b.TestC` and `test_d[e]`."""
    parts = classname.split(".")
    module = [part for part in parts if not part.startswith("Test")]
    classes = parts[len(module) :]
    return "::".join(["/".join(module) + ".py", *classes, name])


def run(expression: str, arguments: tuple[str, ...]) -> Try:
    """Runs pytest in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", expression, f"--junitxml={report}"]
        ended = subprocess.run([*command, *arguments], cwd=ROOT, check=False)
        failed = failed_in(report) if report.exists() else ()
        return Try(ended.returncode, failed)


def with_retries(expression: str, arguments: tuple[str, ...]) -> bool:
    """Returns whether each test has passed in one of its tries; prints which needed more than one."""
    last = run(expression, arguments)
    at_first = last.failed
    tries = 1
    while tries < TRIES and last.status == FAILED and last.failed:
        tries += 1
        print(f"\nTry {tries} of {TRIES} for {len(last.failed)} tests", flush=True)
        last = run(expression, last.failed)
    if last.passed and at_first:
        print(f"\nPassed in a later try ({len(at_first)}):", *at_first, sep="\n  ", flush=True)
    return last.passed


def main(arguments: tuple[str, ...]) -> int:
    """Runs both phases, with pytest's own arguments behind the phase's; returns the exit status."""
    passed = [with_retries(expression, (*how, *arguments)) for expression, how in PHASES]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
