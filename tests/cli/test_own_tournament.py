"""`tournament -- COMMAND`: a user's own script from the command line, to the line of code to paste."""

import os
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.cli.json_objects import told as read_json
from tests.command_line import Call, one_line
from vitprof.cli.tournament import agreement
from vitprof.jobs import trial_folder

TRIALS = ("tournament", "--steps", "60", "--repeats", "2", "--no-until-decided")
VARY = ("--vary", "workers=0,2", "--vary", "prefetch_factor=4")
PRETEND = ("--", sys.executable, "-m", "tests.jobs.pretend")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vitprof_home: Path) -> None:
    monkeypatch.setattr("vitprof.experiments.trials.TRIALS_EVERY_S", 0.005)
    monkeypatch.setattr("vitprof.cli.tournament.running.TOURNAMENT_EVERY_S", 0.01)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.mark.measured
def test_what_it_writes_is_shown_before_it_is_repeated(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("model.pt").write_text("of weeks")
    status, out, err = call(*TRIALS, "--in-place", *VARY, *PRETEND, "writes", "differs")
    assert (status, out) == (2, "")
    first, length, second = err.splitlines()
    assert length.endswith("runs, for a time that is known after the first one.")
    command = f"{sys.executable} -m tests.jobs.pretend writes differs"
    assert first.startswith(f"Each trial runs {command} in {Path.cwd()} and")
    assert first.endswith(
        "trains for up to 60 steps; it writes what it always writes, such as checkpoints."
    )
    again = "python -m vitprof tournament resume 1 --yes"
    assert second == f"vitprof: tournament 1 is paused; to run the script: {again}"
    assert Path("model.pt").read_text() == "of weeks", "nobody agreed"
    again = f"to repeat the script: {again}"
    asked: list[str] = []

    def refuse(question: str, err: bool) -> bool:
        asked.append(question)
        if len(asked) > 2:
            raise agreement.typer.Abort  # Ctrl-C at the question
        return question == "Run it?"

    with monkeypatch.context() as on_a_terminal:
        on_a_terminal.setattr(agreement.sys, "stdin", on_a_terminal)
        on_a_terminal.setattr(on_a_terminal, "isatty", lambda: True, raising=False)
        on_a_terminal.setattr(type(sys.stderr), "isatty", lambda self: True)
        on_a_terminal.setattr(agreement.typer, "confirm", refuse)
        for questions in (["Run it?", "Repeat it?"], ["Run it?", "Repeat it?", "Repeat it?"]):
            status, _, err = call("tournament", "--resume", "1")
            assert (status, asked) == (2, questions)
            assert err.endswith(f"{again}\n")
            if len(asked) == 2:
                assert "without workers prefetch_factor has no meaning: left out" in err
                assert (
                    f"The first trial in {Path.cwd()} wrote or deleted 1 file:\n  model.pt\n" in err
                )
                assert "VITPROF_TRIAL" in err
    assert Path("model.pt").read_text() == "of trial 1", "nobody agreed"
    status, out, err = call("tournament", "--resume", "1", "--yes")
    assert (status, Path("model.pt").read_text()) == (0, "of trial 4")
    text = " ".join(out.split())
    assert "* 2 workers, prefetch 4 " in text
    assert "recommended; changes the losses: from step 0" in text
    assert "\n    DataLoader(..., num_workers=2, prefetch_factor=4)\n" in out
    assert "preparation" not in out
    told = read_json("tournament", call("tournament", "--resume", "1", "--json")[1])
    assert told["recommendation"]["code"] == "DataLoader(..., num_workers=2, prefetch_factor=4)"
    assert told["trials"][0]["losses"] == "changes the losses: from step 0"
    assert told["spec"]["script"]["writes"] == ["model.pt"]


@pytest.mark.measured
def test_what_writes_nothing_is_repeated_without_a_question(call: Call) -> None:
    status, out, err = call(*TRIALS, "--repeats", "1", *VARY, *PRETEND)
    assert status == 0
    assert f"The first trial wrote no file under {Path.cwd()}." in err
    assert "Too early" in out


@pytest.mark.measured
def test_nothing_is_overwritten_and_no_secret_is_stored(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("model.pt").write_text("of weeks")
    script = (*PRETEND, "writes", "--api-key=S3CRET")
    status, _, err = call(*TRIALS, "--repeats", "1", *VARY, *script)
    assert status == 0
    assert "wrote or deleted 1 file, all of them gone with it:\n  model.pt\n" in err
    assert Path("model.pt").read_text() == "of weeks"
    store = Path(os.environ["VITPROF_HOME"], "recordings.sqlite")
    assert b"S3CRET" not in store.read_bytes()  # closed: nothing is in its -wal file
    monkeypatch.setattr(agreement.planning, "_commands", {})
    resume = ("tournament", "--resume", "1")
    assert "give the whole command again after --" in one_line(call, *resume, "--more-rounds", "1")
    assert "it is not that of the resumed tournament" in one_line(call, *resume, *PRETEND)
    assert call(*resume, *script)[0] == 0


def test_links_that_lead_out_of_a_copied_folder_are_named_and_asked_for(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_folder, "_has_layers", lambda folder, others: False)
    (tmp_path / "outside").mkdir()
    Path("checkpoints").symlink_to("../outside")
    Path("latest").symlink_to(Path.cwd())
    status, out, err = call(*TRIALS, *VARY, *PRETEND, "writes", "../named")
    assert (status, out) == (2, "")
    first, length, second = err.splitlines()
    assert length.endswith("runs, for a time that is known after the first one.")
    assert first.endswith(
        "it works in a copy of that folder, which is discarded when the trial ends; files written elsewhere stay, "
        f"such as through checkpoints -> {tmp_path}/outside, at {tmp_path}/named."
    )
    again = "python -m vitprof tournament resume 1 --yes"
    assert second == f"vitprof: tournament 1 is paused; to run the script: {again}"
    assert not list((tmp_path / "outside").iterdir())
    Path("best.pt").symlink_to(tmp_path / "best.pt")
    line = one_line(call, "tournament", "--resume", "1", "--yes", status=1)
    assert line.startswith(
        f"vitprof: a link in {Path.cwd()} leads out of it since the tournament began: best.pt -> "
        f"{tmp_path}/best.pt; begin a new tournament"
    )


@pytest.mark.measured
@pytest.mark.alone  # other tests' processes are other programs: what runs beside them does not count
def test_a_real_training(call: Call) -> None:
    """Two processes with PyTorch: what `torch.save` writes is seen, and four workers hide the samples."""
    script = ("--", sys.executable, "-m", "tests.watch.slow_samples")
    options = (
        "--steps",
        "35",
        "--repeats",
        "1",
        "--no-until-decided",
        "--vary",
        "workers=4",
        "--json",
        "--yes",
    )
    status, out, err = call("tournament", *options, *script)
    assert status == 0
    assert "wrote or deleted 1 file, all of them gone with it:\n  model.pt\n" in err
    assert not Path("model.pt").exists()
    told = {t["key"]: t for t in read_json("tournament", out)["trials"]}
    four, as_it_is = told["own-script/workers=4"], told["own-script/unchanged"]
    assert (four["workers"], as_it_is["workers"], as_it_is["n_steps"]) == (4, 0, 30)
    # 8 samples in 44 ms and more, however busy the machine is
    assert as_it_is["samples_per_s"] < 8 / 0.044
    assert four["samples_per_s"] > 1.5 * as_it_is["samples_per_s"]
