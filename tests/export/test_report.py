"""The report holds what it should, and nothing in a run can become markup. A browser opens it in tests/browser."""

import datetime as dt
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.ui.dashboard import add_run
from vitprof.analysis.verdict.headroom import Anchor, headroom
from vitprof.config import GROUPS
from vitprof.errors import VitprofError
from vitprof.export.report import MOST_CHARTED, MOST_RUNS, _contents, html_report
from vitprof.recording.columns import TELEMETRY_COLUMNS
from vitprof.store import RunStore, StoredRun

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)> & \"'"
NOW = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)
LIMIT_BYTES = 5_000_000


class Page(HTMLParser):
    """What a browser would see: elements with their attributes, and the text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "link", "br"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.inside, f"</{tag}> ends nothing"
        assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        (
            self.scripts if self.inside and self.inside[-1] in ("script", "style") else self.texts
        ).append(data)

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.texts).split())


def parsed(text: str) -> Page:
    page = Page(text)
    assert not page.inside, "every element is closed"
    return page


@pytest.fixture
def run(store: RunStore) -> StoredRun:
    return store.run(
        add_run(store, n=40, name="plain", device="simulated:5,0", strategy="workers", workers=2)
    )


def test_a_run_is_told_from_its_verdict_to_its_machine(store: RunStore, run: StoredRun) -> None:
    store.update_run(run.id, environment={"device_name": "Zürich 9000"}, notices=["copied 3 MB"])
    text = html_report(store, [store.run(run.id)], now=NOW)
    assert len(text.encode()) < LIMIT_BYTES
    page = parsed(text)
    words = [
        f"Run {run.id}: plain simulated",
        "Made by vitprof",
        "2026-01-02 03:04 UTC",
        "copied 3 MB",
        "Zürich 9000",
    ]
    words += [
        "Why does the device wait?",
        "Time of each step",
        "Why is a batch slow?",
    ]
    figures = [
        "GPU was idle for data 50% of the time (50%, 35 steps).",
        "cause: data wait 50%",
        "data wait 5.00 ms",
        "reading 3.00 ms",
    ]
    assert [expected for expected in words + figures if expected not in page.said] == []
    settings = {name for names in GROUPS.values() for name in names}
    assert {n for n in settings if run.config.to_dict()[n] not in (None, "")} <= set(
        page.said.split()
    )
    charts = json.loads(page.scripts[1])
    assert len(charts) == len([e for e in page.elements if e[1].get("role") == "img"]) == 4
    assert all("template" not in chart["layout"] for chart in charts)


def test_the_machine_is_told_in_words(store: RunStore, run: StoredRun) -> None:
    used = [
        {"name": "train.py", "pid": 7, "cores": 0.57},
        {"name": "chrome", "pid": 8, "cores": 0.1, "processes": 3},
    ]
    loader = {"dataset": "ImageFolder", "num_workers": 0, "start_method": None}
    environment = {"job_id": "", "other_programs": used, "watched": loader, "world_size": 1}
    store.update_run(run.id, environment=environment)
    said = parsed(html_report(store, [store.run(run.id)], now=NOW)).said
    _, _, machine = said.partition("Machine")
    assert machine.split("Train loader")[0].endswith(
        "other_programs train.py 0.6 (process 7), chrome 0.1 (3 processes) world_size 1 "
    )
    assert machine.split("Train loader")[1].startswith(" dataset ImageFolder num_workers 0")
    assert "{" not in machine
    assert "None" not in machine
    assert "job_id" not in machine


def test_launch_bubbles_transforms_and_headroom_of_somebodys_own_loop(store: RunStore) -> None:
    run_id = add_run(store, launch_idle_s=0.004)
    assert "Transforms" not in parsed(html_report(store, [store.run(run_id)], now=NOW)).said
    new, kept = (
        {"steps": 10, "step_s": s, "compute_s": 0.5, "data_wait_s": s - 0.5} for s in (1.5, 0.5)
    )
    replay = {str(i): kept if i % 2 else new for i in range(8)}
    spent = {"s_per_sample": 0.002, "calls": 9, "cpu_s_per_sample": 0.0015}
    store.update_run(
        run_id,
        facts={"transforms": {"<lambda>": spent}, "replay": replay},
    )
    said = parsed(html_report(store, [store.run(run_id)], now=NOW)).said
    assert "compute 50%" in said
    assert "of it launch bubbles 40% 40% to 40% 140 ms" in said
    assert "<lambda> 2.00 ms 100% 1.50 ms 9" in said
    assert "step 3.00x 3.00x to 3.00x 4 step without its data wait 1.00x" in said
    assert "with free data the steps of this loop would run 3.00x as fast" in said


def test_nothing_is_fetched_and_only_its_own_scripts_may_run(
    store: RunStore, run: StoredRun
) -> None:
    page = parsed(html_report(store, [run], now=NOW))
    assert not [e for e in page.elements if {"src", "srcset", "action", "data"} & set(e[1])]
    assert not [e for e in page.elements if not (e[1].get("href") or "#").startswith("#")]
    assert not [
        name for _, attributes in page.elements for name in attributes if name.startswith("on")
    ]
    (policy,) = [a["content"] or "" for tag, a in page.elements if a.get("http-equiv")]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert re.fullmatch(r"('sha256-[\w+/=]{44}' ?){2}", rules["script-src"])
    assert not re.search(r"https?:", page.scripts[0] + page.scripts[1] + page.scripts[3])


def test_texts_of_a_run_stay_texts(store: RunStore) -> None:
    ids = [add_run(store, n=30, name=HOSTILE), add_run(store, n=0, status="failed")]
    store.update_run(
        ids[0], environment={"device_name": HOSTILE, "</dl>": HOSTILE}, notices=[HOSTILE]
    )
    store.update_run(ids[1], name=HOSTILE, error=HOSTILE)
    page = parsed(html_report(store, [store.run(i) for i in ids], now=NOW))
    assert [tag for tag, _ in page.elements if tag in ("script", "img")] == ["script"] * 3
    assert page.said.count(HOSTILE) >= 6
    assert "ended before its first step" in page.said


def test_several_runs_stand_side_by_side_with_what_makes_them_unlike(
    store: RunStore, run: StoredRun
) -> None:
    other = store.run(
        add_run(store, n=40, wait_s=0.015, name="slower", batch_size=64, device="cpu")
    )
    page = parsed(html_report(store, [run, other], now=NOW))
    links = [a["href"] for tag, a in page.elements if tag == "a"]
    assert links == [f"#run-{run.id}", f"#run-{other.id}"]
    assert {f"run-{run.id}", f"run-{other.id}"} <= {a.get("id") for _, a in page.elements}
    assert "The batch size differs" in page.said
    in_its_note = 1
    assert page.said.count("not comparable") == in_its_note + 1
    settings = {"device": "simulated:5,0", "strategy": "workers", "workers": 2}
    alike = store.run(add_run(store, n=40, wait_s=0.015, name="slower", **settings))
    compared = parsed(html_report(store, [run, alike], now=NOW))
    assert compared.said.count("not comparable") == in_its_note


def test_two_runs_are_one_picture_with_the_verdict_as_its_title(
    store: RunStore, run: StoredRun
) -> None:
    slow = store.run(add_run(store, n=40, wait_s=0.015, device="simulated:5,0"))
    page = parsed(html_report(store, [run, slow], now=NOW))
    assert page.said.count("What the device did") == 1
    (picture,) = (c for c in json.loads(page.scripts[1]) if c["layout"].get("meta"))
    for layout in (picture["layout"], picture["layout"]["meta"]["narrow"]["layout"]):
        words = " ".join(note["text"] for note in layout["annotations"])
        title = re.sub("</?b>|<br>", " ", words)
        assert "The simulated GPU waits for data 75% of the time; with workers 50%" in " ".join(
            title.split()
        )
    assert "width" not in picture["layout"], "that of the page"
    alone = parsed(html_report(store, [run], now=NOW))
    assert alone.said.count("What the device did") == 1


def test_headroom_is_in_it_where_it_was_measured(store: RunStore, run: StoredRun) -> None:
    anchors = [Anchor("A", 4e-5, 3.9e-5, 4.1e-5, 2, 70), Anchor("C", 1e-4, 0.9e-4, 1.1e-4, 2, 70)]
    found = headroom(anchors, baseline="C", notes=["a note"])
    page = parsed(html_report(store, [run], headrooms={run.id: found}, now=NOW))
    assert "data on the device 5.12 ms" in page.said
    assert "a note" in page.said
    assert "measured" in page.said
    assert "Headroom" not in parsed(html_report(store, [run], now=NOW)).said


def test_many_long_runs_stay_below_5_mb(
    store: RunStore, run: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 20_000
    short, noise = store.steps(run.id), np.random.default_rng(0).random(n) * 1e-3
    steps = {name: np.resize(values, n) for name, values in short.items()}
    steps["step"], steps["warmup"] = np.arange(float(n)), np.zeros(n)
    steps["t_start_s"] = 100 + np.cumsum(0.01 + noise)
    steps["made_start_s"], steps["compute_start_s"] = steps["t_start_s"], steps["t_start_s"] + 0.005
    telemetry = {name: np.empty(0) for name in TELEMETRY_COLUMNS}
    one = _contents(run, steps, telemetry, None, None, charted=True, pictured=True)
    size = sum(len(part.figure) for part in one.parts if hasattr(part, "figure"))
    page = len(html_report(store, [run], now=NOW))
    tables = page - sum(len(s) for s in parsed(html_report(store, [run], now=NOW)).scripts)
    assert page + MOST_CHARTED * size + MOST_RUNS * tables < LIMIT_BYTES


def test_a_report_of_nothing_or_of_too_much_is_one_line(store: RunStore, run: StoredRun) -> None:
    with pytest.raises(VitprofError, match="at least one run"):
        html_report(store, [])
    with pytest.raises(VitprofError, match=f"at most {MOST_RUNS} runs, not {MOST_RUNS + 1}"):
        html_report(store, [run] * (MOST_RUNS + 1))
