"""A recorded run has one idle share, one verdict and one gain, wherever they are shown."""

import io
import json

import pandas as pd
import pytest

from tests.command_line import Call, succeeds
from tests.ui.dashboard import app, said
from vitprof import demo, formats
from vitprof.analysis.verdict.answer import Answer
from vitprof.experiments import answers
from vitprof.export import bundle, tables
from vitprof.export.markdown import answer_markdown
from vitprof.export.report import html_report
from vitprof.store import RunQuery, RunStore, StoredRun

NAMES = (
    "Image by image, as most tutorials do",
    "Whole batches, made one ahead",
    "A tiny model on a fast GPU",
    "python train.py photos",
    "Photos, decoded by one worker",
    "A worker was killed",
)


@pytest.fixture
def recorded(store: RunStore) -> dict[str, int]:
    """The demonstration's runs in the store: input-bound, launch-bound, not, a script, a failed one."""
    with demo.RUNS.open("rb") as file:
        bundle.import_bundle(store, file)
    ids = {row.name: row.id for row in store.list_runs(RunQuery(), limit=100)}
    return {name: ids[name] for name in NAMES}


def answer_of(store: RunStore, run: StoredRun) -> Answer:
    answer = answers.answer_of_run(store, run)
    assert answer is not None
    return answer


def test_every_surface_has_the_same_idle_share_and_verdict(
    store: RunStore, recorded: dict[str, int], call: Call
) -> None:
    history = app("history", size="100").dataframe[0].value.set_index("run")
    compared = app("compare", runs=",".join(map(str, recorded.values())))
    of_compare = compared.dataframe[0].value
    for number in recorded.values():
        run = store.run(number)
        answer = answer_of(store, run)
        share = formats.percent(answer.frac)
        word = answer.headline.lower()
        shown = {
            "page": f"{share} idle" in said(app(run=str(number))),
            "markdown": share in answer_markdown(run, answer),
            "terminal": share in succeeds(call, "runs", str(number)),
            "report": share in html_report(store, [run]),
        }
        assert all(shown.values()), (number, share, shown)
        assert history.loc[number]["idle"] == pytest.approx(100 * answer.frac, abs=0.5)
        assert word in history.loc[number]["verdict"]
        (row,) = pd.read_csv(io.StringIO(tables.summary_csv([run]))).to_dict("records")
        assert row["idle_frac"] == pytest.approx(answer.frac)
        assert row["verdict"] == word
        plain = json.loads(succeeds(call, "runs", str(number), "--json"))
        stated = "paced_frac" if answer.headline == "Launch-bound" else "idle_frac"
        assert plain["verdict"][stated] == pytest.approx(answer.frac)
        (of_run,) = [
            line for _, line in of_compare.iterrows() if line["Run"].startswith(f"{number}:")
        ]
        assert of_run["Idle (%)"] == pytest.approx(100 * answer.frac, abs=0.5)
        assert of_run["Verdict"] == word


def test_the_gain_is_the_same_on_the_page_in_the_terminal_and_in_a_table(
    store: RunStore, recorded: dict[str, int], call: Call
) -> None:
    for number in recorded.values():
        run = store.run(number)
        ceiling = answer_of(store, run).ceiling
        (row,) = pd.read_csv(
            io.StringIO(tables.summary_csv([run], answers.answers_of(store, [run])))
        ).to_dict("records")
        if ceiling is None:
            assert pd.isna(row["gain_at_most"])
            continue
        most = f"up to {formats.number(ceiling.times)}x"
        assert most in said(app(run=str(number)))
        assert most in succeeds(call, "runs", str(number))
        assert row["gain_at_most"] == pytest.approx(ceiling.times)
