"""The rule by which a test of the lane `measured` fails that lane."""

from pathlib import Path

import pytest

from tests import measured
from tests.measured import FAILED, NO_TESTS, Try, failed_in, node_id, with_retries

A, B = "tests/a/test_a.py::test_a", "tests/a/test_b.py::TestB::test_b[x-1]"
REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_a" name="test_a"><failure>no</failure></testcase>
<testcase classname="tests.a.test_b.TestB" name="test_b[x-1]"><error>no</error></testcase>
<testcase classname="tests.a.test_b.TestB" name="test_c" />
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("tries", "passes"),
    [
        ([Try(0, ())], True),
        ([Try(NO_TESTS, ())], True),
        ([Try(FAILED, (A, B)), Try(FAILED, (B,)), Try(0, ())], True),
        ([Try(FAILED, (A,)), Try(FAILED, (A,)), Try(FAILED, (A,))], False),
        ([Try(2, ())], False),  # interrupted
        ([Try(FAILED, ())], False),  # without a test that failed: a file that cannot be imported
    ],
)
def test_a_test_fails_the_lane_when_it_failed_three_times_in_a_row(
    monkeypatch: pytest.MonkeyPatch, tries: list[Try], passes: bool
) -> None:
    asked: list[tuple[str, ...]] = []

    def run(expression: str, arguments: tuple[str, ...]) -> Try:
        asked.append(arguments)
        return tries[len(asked) - 1]

    monkeypatch.setattr(measured, "run", run)
    assert with_retries("measured", ("-n", "2")) is passes
    # each further try is of what failed in the one before, in one process
    assert asked == [("-n", "2"), *(last.failed for last in tries[:-1])]


def test_the_tests_that_failed_are_named_as_pytest_takes_them(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert failed_in(report) == (A, B)
    assert node_id("tests.test_a", "test_a") == "tests/test_a.py::test_a"
