"""A recorded run has one idle share, one verdict, one gain, and one figure of what other programs used, wherever
they are shown."""

import html
import io
import json
import math

import pandas as pd
import pytest

from tests.command_line import Call, succeeds
from tests.stored_series import append_telemetry
from tests.ui.dashboard import add_run, app, said
from vitprof import demo, formats
from vitprof.analysis.timing.gaps import RunGaps
from vitprof.analysis.verdict.answer import Answer, cost_in_words
from vitprof.analysis.verdict.verdict import judge
from vitprof.config.device_rate import DEVICE_RATE
from vitprof.experiments import answers
from vitprof.export import bundle, tables
from vitprof.export.markdown import answer_markdown
from vitprof.export.report import html_report
from vitprof.recording.columns import TELEMETRY_COLUMNS
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


def test_the_parts_of_the_cost_add_up_to_the_wall_clock_of_recorded_runs(
    store: RunStore, recorded: dict[str, int]
) -> None:
    n_told = 0
    for number in recorded.values():
        run = store.run(number)
        answer = answer_of(store, run)
        if answer.cost is None:
            assert not answer.is_conclusive
            continue
        n_told += 1
        steps = store.steps(number)
        wall = RunGaps.of(steps, run.phases).training
        whole = answer.cost.so_far.whole.seconds
        assert whole == pytest.approx(wall.span_s)
        parts = answer.cost.so_far.parts
        assert math.fsum(part.seconds for part in parts) == pytest.approx(wall.span_s)
        waited_s = (wall.exposed_wait_ns.sum() / 1e9) + wall.seconds("h2d")
        assert answer.cost.so_far.waiting.seconds == pytest.approx(waited_s, rel=1e-6)
    assert n_told >= 4


def test_the_cost_is_the_same_on_every_surface(
    store: RunStore,
    recorded: dict[str, int],
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DEVICE_RATE, "2.50 USD")
    n_with_money = 0
    for number in recorded.values():
        run = store.run(number)
        answer = answer_of(store, run)
        cost = answer.cost
        plain = json.loads(succeeds(call, "runs", str(number), "--json"))["idle_cost"]
        text = tables.summary_csv([run], answers.answers_of(store, [run]))
        (row,) = pd.read_csv(io.StringIO(text)).to_dict("records")
        if cost is None:
            assert plain is None
            assert pd.isna(row["waiting_s"])
            continue
        words = cost_in_words(answer)
        shown = {
            "page": words[0].upper() + words[1:] in said(app(run=str(number))),
            "terminal": words in " ".join(succeeds(call, "runs", str(number)).split()),
            "markdown": words in answer_markdown(run, answer).replace("\\", ""),
            "report": words
            in html.unescape(succeeds(call, "export", str(number), "--format", "html")),
        }
        assert all(shown.values()), (number, words, shown)
        waiting = cost.so_far.waiting
        assert plain["so_far"]["waiting"]["seconds"] == pytest.approx(waiting.seconds)
        assert row["waiting_s"] == pytest.approx(waiting.seconds)
        if math.isfinite(waiting.money):
            n_with_money += 1
            assert row["waiting_money"] == pytest.approx(waiting.money)
            assert plain["so_far"]["waiting"]["money"] == pytest.approx(waiting.money)
            assert "at 2.50 USD an hour" in words
        else:
            assert pd.isna(row["waiting_money"])
            assert plain["so_far"]["waiting"]["money"] is None
    assert n_with_money


OTHERS_CORES = 1.37


def add_disturbed_run(store: RunStore) -> StoredRun:
    """A run on two cores, of which other programs took most while it was in its steady state, and none before."""
    run_id = add_run(store)
    samples = []
    for t_s, of_others in ((100.01, 0.0), *((100.06 + 0.02 * n, OTHERS_CORES) for n in range(15))):
        used = {"t_s": t_s, "cpu_pct": 50 * (0.6 + of_others), "job_cpu_pct": 60.0}
        samples.append([used.get(name, float("nan")) for name in TELEMETRY_COLUMNS])
    append_telemetry(store, run_id, 1, samples)
    store.update_run(run_id, environment={"cpu_count": 2})
    run = store.run(run_id)
    facts = run.environment | run.facts
    verdict = judge(run.config, store.steps(run_id), (), store.telemetry(run_id), facts)
    store.update_run(run_id, verdict=verdict.to_dict())
    return store.run(run_id)


def test_what_other_programs_used_is_one_figure(store: RunStore, call: Call) -> None:
    """A table had the machine's cores in its place, and the page and the report had none."""
    runs = [add_disturbed_run(store), add_disturbed_run(store)]
    one, other = runs
    words = "Other programs used 1.4 of 2 cores"
    compared = said(app("compare", runs=f"{one.id},{other.id}"))
    assert f"{words} during run {one.id} and 1.4 of 2 cores during run {other.id}." in compared
    shown = {
        "page": said(app(run=str(one.id))),
        "markdown": answer_markdown(one, answer_of(store, one)),
        "terminal": succeeds(call, "runs", str(one.id)),
        "report": html_report(store, [one]),
        "record": json.loads(succeeds(call, "runs", str(one.id), "--json"))["verdict"]["sentence"],
    }
    assert [name for name, text in shown.items() if f"{words}." not in text] == []
    (row,) = pd.read_csv(io.StringIO(tables.summary_csv([one]))).to_dict("records")
    assert row["other_programs_cores"] == pytest.approx(OTHERS_CORES)
