"""`code`: what it prints, writes and refuses."""

from pathlib import Path

from tests.command_line import Call, one_line, succeeds
from vitprof.config import RunConfig
from vitprof.export.code import script
from vitprof.store import RunStore


def test_a_strategy_is_printed(call: Call) -> None:
    out = succeeds(call, "code", "--strategy", "threads", "--workers", "3")
    assert out == script(RunConfig(strategy="threads", workers=3))
    assert "WORKERS = 3" in out


def test_a_run_is_written_to_a_file(call: Call, mine: RunStore, tmp_path: Path) -> None:
    config = RunConfig(strategy="memory", batch_size=77)
    number = mine.create_run(config)
    path = tmp_path / "script.py"
    assert call("code", str(number), "--output", str(path)) == (0, "", "")
    text = path.read_text(encoding="utf-8")
    assert text == script(config, run_id=number)
    assert "BATCH_SIZE = 77" in text
    assert f"from run {number}" in text
    _, changed, _ = call("code", str(number), "--batch-size", "55")
    assert "BATCH_SIZE = 55" in changed
    assert "from run" not in changed  # it was not measured so


def test_what_cannot_be_is_one_line(call: Call) -> None:
    for args, complaint in (
        (["x"], "RUN x: give a whole number"),
        (["--strategy", "magic"], "--strategy magic: choose one of"),
        (
            ["--output", "/nowhere/script.py"],
            "--output /nowhere/script.py: there is no directory /nowhere",
        ),
    ):
        assert complaint in one_line(call, "code", *args)
    assert "there is no run 9" in one_line(call, "code", "9", status=1)


def test_a_script_takes_no_other_files_place_unless_told_to(call: Call, tmp_path: Path) -> None:
    mine = tmp_path / "train.py"
    mine.write_text("mine")
    complaint = f"vitprof: --output {mine}: there is such a file; give another name, or --force to replace it\n"
    assert one_line(call, "code", "--strategy", "memory", "--output", str(mine)) == complaint
    assert mine.read_text() == "mine"
    assert call("code", "--strategy", "memory", "--output", str(mine), "--force") == (0, "", "")
    assert "memory" in mine.read_text()
    assert call("code", "--strategy", "memory", "--output", str(tmp_path / "new.py")) == (0, "", "")
