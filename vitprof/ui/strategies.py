"""The Strategies page: one strategy with its picture, costs and settings, then all in one table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import streamlit as st

from vitprof import formats
from vitprof.config import (
    accelerators,
    availability,
    bounds,
    estimates,
    strategies,
)
from vitprof.config.parts import Combination, why_not
from vitprof.datasets import catalog
from vitprof.ui import resources, tables, texts, widgets
from vitprof.ui.profile.settings import takes, use

ANSWERS = {"ok": "yes", "note": "limited", "bad": "no"}
WITHOUT_DEFAULT = {
    "cache_mb": "none",
    "slow_mb_s": "the preset's",
    "slow_latency_ms": "the preset's",
}
"""The words for a setting that has no default; they are `widgets.AUTOMATIC` for those not named
here."""
REFERENCE: Mapping[str, tuple[float, ...]] = {
    "device": (100_000, 1_520),
    "hdf5-chunked": (99_100, 1_490),
    "hdf5": (99_100, 1_490),
    "memory-ahead": (99_100, 1_490),
    "memory": (99_100, 1_490),
    "preprocessed": (99_100, 1_490),
    "pt-mmap": (99_100, 1_490),
    "lmdb": (97_600, 1_220),
    "pt-whole": (96_500, 1_450),
    "cache": (89_600, 1_490),
    "tensordataset": (84_200, 1_240),
    "ram-disk": (61_400, 1_480),
    "staged": (48_200, 1_270),
    "prefetch": (45_900, 1_430),
    "workers": (35_600, 831),
    "threads": (30_200, 1_320),
    "generator": (25_100, 970),
    "per-sample": (24_600, 423),
    "pt": (6_290, 1_490),
    "slow-drive": (4_890, 1_050),
    "dali": (math.nan, 1_220),
}
"""Samples/s of digits and photos, as docs/results.md has them, on 2 cores of an AMD EPYC with a
simulated device."""
REFERENCE_SETS = ("digits", "photos")
"""The data sets that `REFERENCE` has, in its order."""


@dataclass(frozen=True)
class StrategyRow:
    """A strategy as it would run on the chosen data set."""

    strategy: strategies.Strategy
    parts: Combination
    fits: bool
    """Whether the data set can be loaded this way at all; if not, `needs` says nothing."""
    available: availability.Availability
    needs: estimates.Footprint
    knobs: dict[str, Any]
    reached: float | None
    """Samples/s of the fastest run of it here, on one device for all rows; None: there is none."""
    reference: float
    """Samples/s on the machine of docs/results.md; NaN: not measured there with this data set."""


def rows(info: catalog.DatasetInfo, machine: availability.Machine) -> tuple[list[StrategyRow], str]:
    """Returns every strategy, and the device on which the most of them have been run here; ""
    before any.
    """
    runs = resources.store().fastest(info.name)
    listed = list[StrategyRow]()
    devices = [device for device, _ in runs]
    device = max(devices, key=devices.count, default="")
    for plan in strategies.STRATEGIES.values():
        parts = plan.combination(info)
        knobs = plan.knobs(parts, info)
        listed.append(
            StrategyRow(
                strategy=plan,
                parts=parts,
                fits=why_not(info, parts) is None,
                available=availability.availability(plan, info, machine=machine),
                needs=estimates.footprint(parts, info, knobs.get("cache_mb")),
                knobs=knobs,
                reached=runs.get((device, plan.name)),
                reference=_reference(plan.name, info.name),
            )
        )
    return listed, device


def _reference(strategy: str, dataset: str) -> float:
    """Returns the samples/s of docs/results.md; NaN where they were not measured."""
    if strategy not in REFERENCE or dataset not in REFERENCE_SETS:
        return math.nan
    return REFERENCE[strategy][REFERENCE_SETS.index(dataset)]


def chosen_set(place: Any) -> catalog.DatasetInfo:
    """Returns the data set that disk, memory and preparation are estimated for.

    The sidebar says of how many images.
    """
    values = widgets.settings()
    names = list(catalog.DATASETS)
    about = "What disk and memory are estimated for."
    at = names.index(values["dataset"]) if values["dataset"] in names else 0
    shown = {name: info.title for name, info in catalog.DATASETS.items()}
    name = place.selectbox(
        "Data set", names, at, shown.__getitem__, key="data", help=about, bind=widgets.IN_URL
    )
    info = catalog.DATASETS[name or names[0]]
    n_images = values["n_images"]
    limits = bounds.RUN_BOUNDS["n_images"]
    known = isinstance(n_images, int) and limits.least <= n_images <= limits.most
    if info.any_size and known:
        return catalog.dataset_info(info.name, n_images)
    return info


def _mib(row: StrategyRow, n_bytes: int) -> float | None:
    """Returns bytes in MiB; None where the data set cannot be loaded this way."""
    return n_bytes / tables.MIB if row.fits else None


FIRST = (
    tables.TableColumn("Strategy", "Its name.", lambda r: r.strategy.name, pinned=True, width=115),
    tables.TableColumn("What", "What it does.", lambda r: r.strategy.title, width=270),
    tables.TableColumn(
        "Runs here",
        "Whether this machine can run it. Why not, and what limits it, is below the table.",
        lambda r: ANSWERS[r.available.verdict],
        width=90,
    ),
    tables.TableColumn(
        "Reached (samples/s)",
        "The fastest run of it here, on the device that is named above. Only a tournament compares fairly.",
        lambda r: r.reached,
        bar=True,
        width=230,
    ),
    tables.TableColumn(
        "Reference (samples/s)",
        "On 2 cores of an AMD EPYC, with a simulated device of 5 ms and 5 us a sample for digits, "
        "10 ms and 500 us "
        "for photos: docs/results.md. The bars of both columns have one scale.",
        lambda r: r.reference,
        bar=True,
        width=230,
    ),
)
"""The columns that are always shown, which fit a window of 1366 px."""
OTHERS = (
    tables.TableColumn(
        "Disk (MiB)",
        "For the prepared storage and copies, without the data set's own files.",
        lambda r: _mib(r, r.needs.disk_bytes),
    ),
    tables.TableColumn(
        "RAM (MiB)",
        "For what is kept in memory as a whole, without workers and batches.",
        lambda r: _mib(r, r.needs.ram_bytes),
    ),
)
MORE = "more"
"""Whether the other columns are shown, in the URL."""

# Okabe and Ito's colours, as in the charts; each runner is named in words too.
STORED = "#7F8C99"
CONCURRENT = "#56B4E9"
IN_THE_LOOP = "#E69F00"
ON_DEVICE = "#009E73"

LOOP = "training loop"
DEVICE = "device"
PLACES = {
    "disk": "local disk",
    "ram-disk": "tmpfs: files in RAM",
    "slow-drive": "throttled drive",
    "staged": "slow drive, then local disk",
}
MOVERS = {
    "blocking": (LOOP, IN_THE_LOOP),
    "pinned": ("copy queued on the device", CONCURRENT),
    "stream": ("CUDA stream of its own", CONCURRENT),
    "resident": (DEVICE, ON_DEVICE),
}


@dataclass(frozen=True)
class Stage:
    """One box of a strategy's picture."""

    kind: str
    """storage, location, loader, transfer or device."""
    title: str
    runner: str
    """The process, thread or device that it runs in, or where it is kept."""
    colour: str


def stages(parts: Combination, knobs: Mapping[str, Any]) -> list[Stage]:
    """Returns the boxes from storage to device.

    Of `knobs`, the settings in effect, only `workers` is shown.
    """
    storage, location, loader, transfer = parts.parts
    where = "No files while training"
    place = "RAM"
    colour = STORED
    if storage.on_disk:
        where = location.title
        place = PLACES[location.name]
    if transfer.name == "resident":
        place = DEVICE
        colour = ON_DEVICE
    runner, runner_colour = _runner(parts, knobs.get("workers"))
    mover, mover_colour = MOVERS.get(transfer.name, (LOOP, IN_THE_LOOP))
    work = "Train" if storage.form == "samples" else "Normalise and train"
    return [
        Stage("storage", storage.title, place, colour),
        Stage("location", where, place, colour),
        Stage("loader", loader.title, runner, runner_colour),
        Stage("transfer", transfer.title, mover, mover_colour),
        Stage("device", work, DEVICE, ON_DEVICE),
    ]


def _runner(parts: Combination, workers: int | None) -> tuple[str, str]:
    """Returns which process or thread makes the batches, in words, and the colour of that."""
    if parts.transfer == "resident":
        return DEVICE, ON_DEVICE
    if parts.loader == "dataloader" and workers:
        return f"{workers} worker process{'es' if workers > 1 else ''}", CONCURRENT
    if parts.loader == "threads":
        threads = workers or 1
        return f"{threads} thread{'s' if threads > 1 else ''} next to the loop", CONCURRENT
    if parts.loader == "ahead":
        return "1 thread next to the loop", CONCURRENT
    if parts.loader == "dali":
        return "DALI: CPU threads or GPU", CONCURRENT
    return LOOP, IN_THE_LOOP


def diagram(parts: Combination, knobs: Mapping[str, Any]) -> str:
    """Returns a strategy as a picture: its parts from storage to device, and what each runs in.

    HTML for style.css, side by side on a wide page and stacked on a narrow one, with a description
    for screen readers.
    `st.mermaid_chart` would load 2.2 MB more, and shrinks the picture instead of stacking it: at
    390 px its words cannot be read.
    """
    drawn = stages(parts, knobs)
    alt = escape(", then ".join(f"{s.kind}: {s.title} ({s.runner})" for s in drawn))
    boxes = "".join(
        f'<div style="--colour: {s.colour}"><small>{s.kind}</small><b>{escape(s.title)}</b>'
        f"<span>{escape(s.runner)}</span></div>"
        for s in drawn
    )
    return f'<div class="vitprof-diagram" role="img" aria-label="{alt}"><div>{boxes}</div></div>'


def _draw(row: StrategyRow, info: catalog.DatasetInfo) -> None:
    plan = row.strategy
    st.markdown(f"**{plan.title}.** {plan.what}")
    off = row.available.verdict == "bad"
    about = "Sets Profile's sidebar to this strategy and data set. Nothing starts yet."
    # above the picture, which arrives later and would push it away from under the pointer
    if st.button(
        "Use in Profile",
        key=f"use-{plan.name}",
        icon=":material/play_arrow:",
        disabled=off,
        help=about,
    ):
        own_size = info == catalog.DATASETS[info.name]
        use(plan.name, info.name, None if own_size else info.n_train)
        # without {} it is refused: widgets are bound
        st.switch_page("pages/profile.py", query_params={})
    if row.fits:
        st.html(diagram(row.parts, {**plan.fixed, **row.knobs}))
    if row.available.verdict == "bad":
        st.warning(f"Does not run here: {texts.escaped(row.available.reason)}")
    elif row.available.verdict == "note":
        st.info(f"Runs here; {texts.escaped(row.available.reason)}")
    else:
        st.markdown(":green[:material/check:] Runs here.")
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown(f"**When it helps.** {plan.when}")
        st.markdown(f"**What it costs.** {plan.costs}")
        if row.fits:
            st.markdown("\n".join(f"- {line}" for line in takes(row.needs, info)))
        st.markdown(f"**Where it comes from.** {plan.origin}.")
    with right:
        st.markdown("**Its settings**" if row.knobs else "**Its settings.** It has none.")
        lines = []
        for name, default in row.knobs.items():
            value = default
            if default is None:
                value = WITHOUT_DEFAULT.get(name, widgets.AUTOMATIC)
            lines.append(
                f"- {widgets.label(name)}: **{texts.value_in_words(value)}**. "
                f"{widgets.help_of(name)}"
            )
        st.markdown("\n".join(lines))


@texts.guarded
def page() -> None:
    st.title("Strategies", anchor=False)
    st.markdown("A strategy is a way of bringing samples from storage to the GPU.")
    left, right = st.columns(2)
    info = chosen_set(left)
    all_rows, device = rows(info, resources.machine())
    shown = {row.strategy.name: row for row in all_rows}
    in_sidebar = widgets.settings()["strategy"]
    runnable = sum(row.available.verdict != "bad" for row in all_rows)
    chosen = right.selectbox(
        "Strategy",
        list(shown),
        index=list(shown).index(in_sidebar) if in_sidebar in shown else 0,
        format_func=lambda name: f"{name} - {shown[name].strategy.title}",
        help="The strategy whose picture, use and costs are shown. The table below has all of them.",
        key="shown",
        bind=widgets.IN_URL,
    )
    _draw(shown[chosen or "memory"], info)
    st.header("All strategies", anchor=False)
    ran = ""
    if device:
        on = "this machine's own device"
        if device != "auto":
            on = accelerators.device_in_words(device)
        ran = f" *Reached*: their fastest runs here, on {texts.escaped(on)}."
    can_load = f"**{runnable} of {len(all_rows)}** strategies can load **{info.name}**"
    st.markdown(f"{can_load} on this machine.{ran}")
    about = "Also what each takes on disk and in memory."
    more = st.toggle("More columns", **widgets.kept(MORE), help=about)
    columns = (*FIRST, *OTHERS) if more else FIRST
    tables.draw(
        columns,
        [(row,) for row in all_rows],
        key=f"strategies-table-{more:d}",
        whole=True,
        placeholder="–",
    )
    _draw_reasons(all_rows)


def _draw_reasons(listed: Sequence[StrategyRow]) -> None:
    """Draws why strategies do not run here, or what limits them: a line for each reason, with all that
    have it.

    In the table it would be cut off, as a cell cannot wrap.
    """
    named: dict[tuple[str, str], list[str]] = {}
    for row in listed:
        if row.available.reason:
            key = (ANSWERS[row.available.verdict], row.available.reason)
            named.setdefault(key, []).append(row.strategy.name)
    lines = []
    # those that do not run first
    for (answer, reason), names in sorted(named.items(), key=lambda item: item[0][0] != "no"):
        lines.append(
            f"- **{', '.join(names)}** ({answer}): {texts.escaped(formats.sentence(reason))}"
        )
    if lines:
        st.markdown("**Why not, or what limits it**")
        st.markdown("\n".join(lines))
