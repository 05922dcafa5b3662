"""A strategy as a picture: its parts from storage to device, and which process or thread each runs in.

Inline SVG in the page's own text colour, so that it is readable in light and dark. It is drawn twice, side by side for
wide pages and stacked for narrow ones; `STYLE`, which the page needs once, shows the one that fits.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from vitprof.config.parts import Combination

STYLE = """<style>
.vitprof-diagram { container-type: inline-size; margin-bottom: 0.75rem }
.vitprof-diagram svg { width: 100%; font-family: inherit; display: block }
.vitprof-diagram svg.wide { max-width: 960px }
.vitprof-diagram svg.tall { max-width: 360px; display: none }
@container (max-width: 640px) {
  .vitprof-diagram svg.wide { display: none }
  .vitprof-diagram svg.tall { display: block }
}
</style>"""

# Okabe and Ito's colours, as in the charts; each runner is named in words too.
STORED, BESIDE, IN_THE_LOOP, ON_DEVICE = "#7F8C99", "#56B4E9", "#E69F00", "#009E73"

LOOP = "training loop"
DEVICE = "device"
BOX_W, BOX_H, GAP = 160, 62, 40
WIDE_W = 5 * BOX_W + 4 * GAP
HEAD, FOOT = 20, 34
TALL_W, TALL_BOX_H, TALL_GAP = 340, 64, 22
WRAP = 21
"""Characters that fit on a line of a box."""


@dataclass(frozen=True)
class Stage:
    """One box of the picture."""

    kind: str
    """storage, location, loader, transfer or device."""
    title: str
    runner: str
    """The process, thread or device that it runs in, or where it is kept."""
    colour: str


def stages(parts: Combination, knobs: Mapping[str, Any]) -> list[Stage]:
    """Returns the boxes from storage to device. Of `knobs`, the settings in effect, only `workers` is shown."""
    storage, location, loader, transfer = parts.parts
    lies = {
        "disk": "local disk",
        "ram-disk": "tmpfs: files in RAM",
        "slow-drive": "throttled drive",
        "staged": "slow drive, then local disk",
    }[location.name]
    if transfer.name == "resident":
        lies = DEVICE
    elif not storage.on_disk:
        lies = "RAM"
    place = location.title if storage.on_disk else "No files while training"
    stored = ON_DEVICE if lies == DEVICE else STORED
    runs, colour = _runner(parts, knobs.get("workers"))
    moves, moves_colour = {
        "blocking": (LOOP, IN_THE_LOOP),
        "pinned": ("copy queued on the device", BESIDE),
        "stream": ("CUDA stream of its own", BESIDE),
        "resident": (DEVICE, ON_DEVICE),
    }[transfer.name]
    return [
        Stage("storage", storage.title, lies, stored),
        Stage("location", place, lies, stored),
        Stage("loader", loader.title, runs, colour),
        Stage("transfer", transfer.title, moves, moves_colour),
        Stage("device", "Train" if storage.form == "samples" else "Normalise and train", DEVICE, ON_DEVICE),
    ]


def _runner(parts: Combination, workers: int | None) -> tuple[str, str]:
    """Returns where batches are made, and the colour for it."""
    if parts.transfer == "resident":
        return DEVICE, ON_DEVICE
    if parts.loader == "dataloader" and workers:
        return f"{workers} worker process{'es' if workers > 1 else ''}", BESIDE
    if parts.loader == "threads":
        return f"{workers or 1} thread{'s' if (workers or 1) > 1 else ''} beside the loop", BESIDE
    if parts.loader == "ahead":
        return "1 thread beside the loop", BESIDE
    if parts.loader == "dali":
        return "DALI: CPU threads or GPU", BESIDE
    return LOOP, IN_THE_LOOP


def diagram(parts: Combination, knobs: Mapping[str, Any]) -> str:
    """Returns the picture as one line of HTML, with a description for screen readers. Needs `STYLE` on the page."""
    drawn = stages(parts, knobs)
    alt = escape(", then ".join(f"{s.kind}: {s.title} ({s.runner})" for s in drawn), quote=True)
    return f'<div class="vitprof-diagram">{_wide(drawn, alt)}{_tall(drawn, alt)}</div>'


def _svg(kind: str, width: int, height: int, alt: str, body: Sequence[str]) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{alt}" '
        f'fill="currentColor" stroke="none">{"".join(body)}</svg>'
    )


def _wide(drawn: Sequence[Stage], alt: str) -> str:
    body = []
    for i, stage in enumerate(drawn):
        x = i * (BOX_W + GAP)
        body.append(_text(x + BOX_W / 2, HEAD - 7, stage.kind, 12, 0.7))
        body.append(_box(x + 1, HEAD, BOX_W - 2, BOX_H, stage))
        if i:
            y = HEAD + BOX_H / 2
            body.append(_arrow(x - GAP + 4, y, x - 5, y))
    at = 0
    for runner, group in itertools.groupby(drawn, key=lambda stage: stage.runner):
        members = list(group)
        left, right = at * (BOX_W + GAP) + 1, (at + len(members) - 1) * (BOX_W + GAP) + BOX_W - 1
        y = HEAD + BOX_H + 8
        body.append(
            f'<path d="M{left} {y - 4}V{y}H{right}V{y - 4}" fill="none" stroke="{members[0].colour}" stroke-width="2"/>'
        )
        body.append(_text((left + right) / 2, y + 17, runner, 13))
        at += len(members)
    return _svg("wide", WIDE_W, HEAD + BOX_H + FOOT, alt, body)


def _tall(drawn: Sequence[Stage], alt: str) -> str:
    body = []
    for i, stage in enumerate(drawn):
        y = i * (TALL_BOX_H + TALL_GAP) + 1
        body.append(_rect(1, y, TALL_W - 2, TALL_BOX_H - 2, stage.colour))
        body.append(_text(TALL_W / 2, y + 17, stage.kind, 12, 0.7))
        body.append(_text(TALL_W / 2, y + 35, stage.title, 14, weight=600))
        body.append(_text(TALL_W / 2, y + 53, stage.runner, 13))
        if i:
            body.append(_arrow(TALL_W / 2, y - TALL_GAP + 1, TALL_W / 2, y - 4))
    return _svg("tall", TALL_W, len(drawn) * (TALL_BOX_H + TALL_GAP) - TALL_GAP, alt, body)


def _box(x: float, y: float, width: float, height: float, stage: Stage) -> str:
    lines = textwrap.wrap(stage.title, WRAP) or [""]
    first = y + height / 2 + 5 - 9 * (len(lines) - 1)
    return _rect(x, y, width, height, stage.colour) + "".join(
        _text(x + width / 2, first + 18 * i, line, 14, weight=600) for i, line in enumerate(lines)
    )


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{colour}" fill-opacity="0.18" '
        f'stroke="{colour}" stroke-width="1.5"/>'
    )


def _text(x: float, y: float, text: str, px: int, opacity: float = 1.0, weight: int = 400) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{px}" font-weight="{weight}" fill-opacity="{opacity:g}" '
        f'text-anchor="middle">{escape(text)}</text>'
    )


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Returns an arrow to the right or down."""
    head = f"M{x2 - 6:g} {y2 - 5:g}L{x2:g} {y2:g}L{x2 - 6:g} {y2 + 5:g}"
    if x1 == x2:
        head = f"M{x2 - 5:g} {y2 - 6:g}L{x2:g} {y2:g}L{x2 + 5:g} {y2 - 6:g}"
    path = f"M{x1:g} {y1:g}L{x2:g} {y2:g}{head}"
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.5" stroke-opacity="0.7"/>'
