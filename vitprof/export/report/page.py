"""The report's HTML. Every text that comes from a run goes through `html.escape`."""

import base64
import datetime as dt
import gzip
import hashlib
import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any

import plotly.graph_objects as go
from plotly.utils import PlotlyJSONEncoder

from vitprof import __version__, formats, store
from vitprof.analysis.signatures.resources import programs_in_words, programs_of
from vitprof.analysis.verdict import answer as answers
from vitprof.analysis.verdict import rendering
from vitprof.analysis.verdict.answer import Answer
from vitprof.charts.style import NEUTRAL, PLOTLY_JS, VERDICTS
from vitprof.config import GROUPS
from vitprof.recording.shared_machine import as_shown
from vitprof.recording.verdict import Verdict

TEMPLATE = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
SCRIPT = Path(__file__).with_name("report.js").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart, drawn when the page is made."""

    title: str
    says: str
    """What the chart shows, for those who cannot see it, and how to read it."""
    height: int
    draw: Callable[[], go.Figure | dict[str, Any]]

    @property
    def figure(self) -> str:
        """Returns it as JSON, without a template: the page has one for light and one for dark."""
        # Arrays become base64 of their bytes.
        plain = go.Figure(self.draw()).to_dict()
        # 6 kB each, and always light.
        plain["layout"].pop("template", None)
        return json.dumps(plain, cls=PlotlyJSONEncoder, separators=(",", ":"))


@dataclass(frozen=True)
class Contents:
    """Everything that a report says about one run."""

    run: store.StoredRun
    verdict: Verdict | None
    """None for a run without any step, and for one that cannot be judged in time."""
    answer: Answer | None
    """The answer that follows from the verdict and from proofs; None likewise."""
    headline: Table
    parts: Sequence[Chart | Table] = ()
    """Charts and tables in the order in which they are read."""


SHORT = 14
"""The most characters of a cell that stays on one line: a figure and its unit."""


@lru_cache(maxsize=1)
def plotly_js() -> tuple[str, str]:
    """Returns Plotly as base64 of gzip, and the source expression that allows it in a content
    security policy.
    """
    source = PLOTLY_JS.read_bytes()
    return base64.b64encode(gzip.compress(source, 9, mtime=0)).decode(), _allowed(source)


def _allowed(script: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"


def e(value: object) -> str:
    """Returns `value` as escaped text for HTML, also for a quoted attribute."""
    return html.escape(str(value), quote=True)


def whole_page(
    contents: Sequence[Contents],
    overview: Sequence[Chart | Table],
    caveats: Sequence[str],
    made: dt.datetime,
) -> str:
    """Returns the text of the HTML file; `overview` compares several runs, and `caveats` say what
    else differs.
    """
    packed, allowed = plotly_js()
    policy = (
        f"default-src 'none'; script-src {_allowed(SCRIPT.encode())} {allowed}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = f"vitprof: {len(contents)} runs"
    if len(contents) == 1:
        title = f"vitprof: run {contents[0].run.id}, {contents[0].run.name}"
    figures: list[str] = []
    parts = [*_overview(contents, overview, caveats, figures)]
    parts += [_run(one, figures) for one in contents]
    body = "\n".join(parts)
    when = made.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    # "<" could end the element or open a comment; JSON can write it as an escape.
    data = "[" + ",".join(figures).replace("<", "\\u003c") + "]"
    texts = {
        "policy": policy,
        "title": e(title),
        "version": e(__version__),
        "when": when,
        "body": body,
        "charts": data,
        "plotly": packed if figures else "",
        "script": SCRIPT,
    }
    return TEMPLATE.substitute(texts, neutral=NEUTRAL)


def _overview(
    contents: Sequence[Contents],
    overview: Sequence[Chart | Table],
    caveats: Sequence[str],
    figures: list[str],
) -> Iterable[str]:
    """Yields the section that shows several runs side by side; nothing for one run."""
    if not overview:
        return
    yield "<section><h2>Side by side</h2>"
    for part in overview:
        if isinstance(part, Table):
            yield _table(part, first_links=[f"#run-{one.run.id}" for one in contents])
        else:
            yield _chart(part, figures)
    if caveats:
        yield f"<h3>What else differs</h3><ul>{''.join(f'<li>{e(c)}</li>' for c in caveats)}</ul>"
    yield "</section>"


def _run(one: Contents, figures: list[str]) -> str:
    """Returns the section of a run. The figures of its charts are added to `figures`."""
    run = one.run
    heading = f"Run {run.id}: {e(run.name)}"
    if run.simulated:
        heading += ' <span class="badge">simulated</span>'
    out = [f'<section id="run-{run.id}"><h2>{heading}</h2>']
    state = f"{run.status}, {run.created_utc}"
    if run.error:
        state += f": {run.error}"
    out.append(f'<p class="quiet">{e(state)}</p>')
    if run.simulated:
        out.append(
            '<p class="quiet">The device was simulated: it took the time that a real one would take.</p>'
        )
    out += [f'<p class="notice">{e(notice)}</p>' for notice in as_shown(run.notices)]
    out.append(_verdict(one))
    out.append(_table(one.headline))
    for part in one.parts:
        out.append(_table(part) if isinstance(part, Table) else _chart(part, figures))
    if not one.parts:
        out.append(
            '<p class="notice">This run ended before its first step: there is nothing to draw.</p>'
        )
    out.append(_settings(one))
    out.append("</section>")
    return "\n".join(out)


def _chart(chart: Chart, figures: list[str]) -> str:
    """Returns the place of a chart. Its figure is added to `figures`."""
    label = e(f"{chart.title}. {chart.says}")
    place = f'<div id="chart-{len(figures)}" role="img" aria-label="{label}" style="height:{chart.height}px"></div>'
    figures.append(chart.figure)
    caption = f"<figcaption><b>{e(chart.title)}</b> {e(chart.says)}</figcaption>"
    return f'<figure class="chart">{caption}{place}</figure>'


def _verdict(one: Contents) -> str:
    verdict = one.verdict
    answer = one.answer
    if verdict is None or answer is None:
        return ""
    colour = VERDICTS.get(verdict.kind, NEUTRAL)
    line = f"<b>{e(answer.headline)}.</b> {e(answer.reason)}"
    out = [
        f'<div class="verdict" style="border-left-color: {colour}"><p>{line}</p>',
        *_answers(answer),
    ]
    out += [f"<p>{e(words)}</p>" for words in (answer.details, answer.remark) if words]
    open_advice = [a for place, a in enumerate(answer.advice) if place not in answer.refuted]
    if open_advice:
        out.append("<p>To try, the best first:</p><ol>")
        out += [
            f"<li><b>{e(formats.sentence(a.words))}</b> {e(formats.sentence(rendering.why_advised(a)))}</li>"
            for a in open_advice
        ]
        out.append("</ol>")
    if answer.refuted:
        gainless = "; ".join(answers.refuted_in_words(answer))
        out.append(f"<p>No gain: {e(gainless)}.</p>")
    if verdict.signatures:
        patterns = "".join(f"<li>{e(s.sentence)}</li>" for s in verdict.signatures)
        out.append(f"<p>Patterns found:</p><ul>{patterns}</ul>")
    return "".join(out) + "</div>"


def _answers(answer: Answer) -> list[str]:
    """Returns the answers after the first as a list of questions."""
    lines = answers.lines(answer)
    if not lines:
        return []
    items = "".join(f"<dt>{e(question)}</dt><dd>{e(words)}</dd>" for question, words in lines)
    return [f"<dl>{items}</dl>"]


def _settings(one: Contents) -> str:
    """Returns the whole configuration by topic, and the machine."""
    config = one.run.config.to_dict()
    out = ["<h3>Settings</h3>", '<div class="lists">']
    for group, names in GROUPS.items():
        known = [(n, config[n]) for n in names if config[n] is not None and config[n] != ""]
        if known:
            out.append(_list(group, known))
    out.append('</div><h3>Machine</h3><div class="lists">')
    out += _machine(one.run.environment)
    return "".join([*out, "</div>"])


def _machine(environment: Mapping[str, Any]) -> list[str]:
    """Returns what is known of the machine and, of a watched run, of its train loader."""
    known = _known(environment)
    loader = known.pop("watched", {})
    if "other_programs" in known:
        programs = programs_of(known["other_programs"])
        known["other_programs"] = programs_in_words(programs, len(programs))
    lists = [_list("", sorted(known.items()))]
    if loader:
        lists.append(_list("Train loader", _known(loader).items()))
    return lists


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}


def _list(title: str, values: Iterable[tuple[str, object]]) -> str:
    items = "".join(f"<dt>{e(name)}</dt><dd>{e(value)}</dd>" for name, value in values)
    heading = ""
    if title:
        heading = f"<h4>{e(title)}</h4>"
    return f"<div>{heading}<dl>{items}</dl></div>"


def _table(table: Table, first_links: Sequence[str] = ()) -> str:
    """Returns a table as HTML; with `first_links` the first cell of each row is a link to it."""
    head = "".join(f'<th scope="col">{e(cell)}</th>' for cell in table.header)
    rows = []
    for number, row in enumerate(table.rows):
        first = e(row[0])
        if first_links:
            first = f'<a href="{first_links[number]}">{first}</a>'
        cells = "".join(map(_cell, row[1:]))
        rows.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    note = ""
    if table.note:
        note = f'<p class="quiet">{e(table.note)}</p>'
    caption = f"<caption>{e(table.title)}</caption>"
    body = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    # A table that is wider than the page is scrolled, also by keyboard.
    return f'<div class="wide" tabindex="0">{body}</div>{note}'


def _cell(text: str) -> str:
    """Returns a cell of a table; one with a figure stays on one line (class n)."""
    if len(text) <= SHORT:
        return f"<td class=n>{e(text)}</td>"
    return f"<td>{e(text)}</td>"
