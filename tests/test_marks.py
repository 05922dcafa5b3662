"""What `-m` imports: each file that may have such tests, and as few others as can be told."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.marks import may_have, refuse_hidden, required


@pytest.mark.parametrize(
    ("expression", "marks"),
    [
        ("measured", {"measured"}),
        ("measured and alone", {"measured", "alone"}),
        ("measured and not alone", {"measured"}),
        ("nullcuda  and gpu", {"nullcuda"}),
        ("not measured", set()),
        ("", set()),
        ("measured or gpu", set()),
        ("not (measured and alone)", set()),
    ],
)
def test_the_marks_that_a_test_must_have(expression: str, marks: set[str]) -> None:
    assert required(expression) == marks


def test_a_mark_that_the_file_of_a_test_does_not_show_is_an_error(tmp_path: Path) -> None:
    written = tmp_path / "test_a.py"
    written.write_text("@pytest.mark.alone\n")
    assert may_have(written, "alone")
    refuse_hidden([Mock(path=written, get_closest_marker={"alone": "mark"}.get)])
    in_its_folder = tmp_path / "nullcuda" / "test_b.py"
    refuse_hidden([Mock(path=in_its_folder, get_closest_marker={"nullcuda": "mark"}.get)])
    hidden = Mock(path=written, nodeid="a", get_closest_marker={"measured": "mark"}.get)
    with pytest.raises(pytest.UsageError, match=r"^a: write mark\.measured in its file$"):
        refuse_hidden([hidden])
