"""Jobs that are slowed down in a known way: what vitprof reports must be that, in cause and in size."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.engine_fixtures import N_PHOTOS, digits_home, photos_home  # noqa: F401
from vitprof.selftest import CASES, Case, SelftestReport, run_selftest
from vitprof.selftest import cases as known

pytestmark = pytest.mark.measured(before_others=True)
LEFT_OUT = {"collate, workers", "decode, generator", "read, whole batches"}
HERE = [case for case in CASES if case.name not in LEFT_OUT and not case.hogs]
HERE.sort(key=lambda case: not case.own_process)
"""Without the one of `test_interference`, and those that others stand for: these tests are to be quick, and `selftest`
has them all. Those in processes come first: they wait until PyTorch is loaded, which would disturb those in threads."""


def results(cases: Sequence[Case], home: Path, data: Sequence[Path]) -> SelftestReport:
    """What comes of `cases` with the data sets of the folders `data`: once each, again where another program got in."""
    (home / "data").mkdir()
    for made in data:
        (home / "data" / made.name).symlink_to(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITPROF_HOME", str(home))
        patch.setenv("VITPROF_WARM", "1")
        report = run_selftest(cases, rounds=1, isolation="thread")
    assert not (home / "logs").exists(), "the logs of a user's own runs would be overwritten"
    return report


@pytest.fixture(scope="module")
def data(digits_home, photos_home) -> list[Path]:  # noqa: F811
    return [digits_home / "data" / "digits", photos_home / "data" / f"photos-{N_PHOTOS}"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, data: list[Path]) -> SelftestReport:
    return results(HERE, tmp_path_factory.mktemp("ground-truth"), data)


@pytest.mark.parametrize("name", [case.name for case in HERE])
def test_cause_size_and_idle_share_are_what_was_put_in(report: SelftestReport, name: str) -> None:
    (result,) = (result for result in report.results if result.case == name)
    assert not result.wrong
    assert result.ok


def test_photos_are_those_that_the_other_tests_have() -> None:
    assert known.N_PHOTOS == N_PHOTOS, "else they are made anew here"
