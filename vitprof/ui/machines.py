"""The Machines page: which jobs are starved now, since when, and what idle devices cost.

The costs are by machine, user or project.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import streamlit as st

from vitprof import formats
from vitprof.analysis.machines import NAMES, LiveIdle, Spent, costs
from vitprof.analysis.thresholds import INPUT_BOUND_FRAC
from vitprof.store.machines import MachineRun, work_since
from vitprof.ui import history_actions, resources, tables, texts, widgets

REFRESH_S = 10.0
ADDING = threading.Lock()
DAYS = {"1 day": 1, "7 days": 7, "30 days": 30, "90 days": 90}
FILTERS: dict[str, tuple[str, Callable[[Spent], str]]] = {
    "machine": ("Machine", attrgetter("machine")),
    "user": ("User", attrgetter("user")),
    "project": ("Project", attrgetter("project")),
}


def state(work: MachineRun, idle: LiveIdle) -> str:
    if work.queued:
        return "queued"
    if not idle.steps:
        return "no steps yet"
    if not idle.is_known:
        return "not known"
    return "starved" if idle.share >= INPUT_BOUND_FRAC else "fed"


HELP_NOW = "starved: its devices waited for data for 20% of the last two minutes or more."
HELP_STARVED = "For how long without a pause, counted in half minutes."
HELP_IDLE = "Time that all its devices have waited for data since it began, added up."
NOW = (
    tables.TableColumn(
        "Run", "Click it to open the run.", lambda work, _: work.id, "%d", pinned=True, width=60
    ),
    tables.TableColumn("Machine", "Where it trains.", lambda work, _: work.spent.machine),
    tables.TableColumn("Now", HELP_NOW, state),
    tables.TableColumn(
        "Idle for data (%)",
        "Share of the last two minutes in which its devices waited for data.",
        lambda _, idle: 100 * idle.share,
        bar=True,
    ),
    tables.TableColumn("Starved for", HELP_STARVED, lambda _, idle: lasted(idle.starved_s())),
    tables.TableColumn(
        "Idle (device-hours)", HELP_IDLE, lambda w, idle: w.spent.devices * idle.idle_s / 3600
    ),
    tables.TableColumn(
        "Devices",
        "Its ranks, and on what they train.",
        lambda w, _: f"{w.spent.devices} x {w.device}",
    ),
    tables.TableColumn("Name", "Its name.", lambda work, _: work.name),
    tables.TableColumn("User", "Who started it.", lambda work, _: work.spent.user),
    tables.TableColumn(
        "Project", "What VITPROF_PROJECT named.", lambda work, _: work.spent.project
    ),
)
UNITS = (("device-hours", 1), ("device-minutes", 60), ("device-seconds", 3600))
"""Units of devices' time, with how many are an hour."""


def in_units(each: int, unit: str) -> tuple[tables.TableColumn, ...]:
    """Returns the columns of what idle devices cost, in a unit of which `each` are an hour."""
    time = f"({unit})"
    return (
        tables.TableColumn(
            "Name", "Machine, user or project.", lambda cost: cost.name or "(none)", pinned=True
        ),
        tables.TableColumn(
            f"Idle for data {time}",
            "Devices' waits.",
            lambda cost: each * cost.idle_hours,
            bar=True,
        ),
        tables.TableColumn(
            "Idle (%)", "Of the time for which it is known.", lambda cost: 100 * cost.idle_frac
        ),
        tables.TableColumn(
            f"Trained {time}", "Time that devices trained.", lambda cost: each * cost.device_hours
        ),
        tables.TableColumn(
            f"Not known {time}",
            "Of runs whose waits are not known.",
            lambda c: each * c.unknown_hours,
        ),
        tables.TableColumn("Runs", "Runs that have ended.", lambda cost: cost.runs, "%d"),
    )


@texts.guarded
def page() -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.title("Machines", anchor=False, width="stretch")
        chosen, work = draw_filters()
    draw_now(chosen)
    draw_costs([each.spent for each in shown(work, chosen) if not each.live])


def draw_filters() -> tuple[dict[str, Sequence[str]], list[MachineRun]]:
    """Draws what to show; returns the names chosen, and the runs of the days chosen."""
    chosen: dict[str, Sequence[str]] = {}
    with st.popover(
        "Filters", icon=":material/filter_alt:", help="By machine, user, project and time."
    ):
        about = "How far back ended runs count."
        days = DAYS[
            str(st.selectbox("Ended runs of the last", list(DAYS), 1, key="days", help=about))
        ]
        work = work_since(resources.store(), days)
        for name, (label, name_of) in FILTERS.items():
            options = {name_of(each.spent) for each in work}
            options |= set(st.query_params.get_all(name))  # else one named there would be dropped
            options.discard("")
            about = "All where none is named."
            chosen[name] = st.multiselect(
                label,
                sorted(options),
                key=name,
                help=about,
                placeholder="all",
                bind=widgets.IN_URL,
                disabled=not options,
            )
    n = sum(bool(names) for names in chosen.values())
    if n:
        st.badge(f"{n} set", help="Filters that narrow both lists.")
    return chosen, work


def shown(work: Sequence[MachineRun], chosen: Mapping[str, Sequence[str]]) -> list[MachineRun]:
    """Returns the work that has one of the names chosen in each filter that is set."""
    set_ones = [(FILTERS[name][1], names) for name, names in chosen.items() if names]
    return [each for each in work if all(of(each.spent) in names for of, names in set_ones)]


def _starved_devices(pair: tuple[MachineRun, LiveIdle]) -> float:
    """Returns how many devices' time passes idle; 0 where that is not known."""
    work, idle = pair
    if not math.isfinite(idle.share):
        return 0.0
    return work.spent.devices * idle.share


@st.fragment(run_every=REFRESH_S)
@texts.guarded
def draw_now(chosen: Mapping[str, Sequence[str]]) -> None:
    work = shown(work_since(resources.store(), 0), chosen)
    live = [(each, idle_of(each)) for each in work if each.live]
    live.sort(key=lambda pair: -_starved_devices(pair))
    st.markdown(f"**{headline(live)}**")
    if not live:
        return
    listed = tables.frame(NOW, live)
    config = tables.column_config(NOW, listed)
    key = "machines-now"
    picked = tables.show(
        listed, key=key, column_config=config, on_select="rerun", selection_mode="single-cell"
    )
    if cells := picked["selection"]["cells"]:
        row, _ = cells[0]
        clicked, _ = live[row]
        history_actions.open_in_profile(clicked.id)


def draw_costs(ended: Sequence[Spent]) -> None:
    st.header("What idle devices cost", anchor=False)
    names = {name: label for name, (label, _) in FILTERS.items()}
    by = st.segmented_control(
        "By", list(names), default="machine", format_func=names.__getitem__, key="machines-by"
    )
    groups = costs(ended, FILTERS[by or "machine"][1])
    if not groups:
        st.caption(
            "No run on a real device ended in the days chosen under *Filters*: simulated devices "
            "do not count."
        )
        return
    idle = sum(cost.idle_hours for cost in groups)
    trained = sum(cost.device_hours for cost in groups)
    # the first unit of which there is one, so that the figures are not all below 1
    unit, each = next((known for known in UNITS if trained * known[1] >= 1), UNITS[-1])
    unknown = sum(cost.unknown_hours for cost in groups)
    share = ""
    if trained > unknown:
        known_time = "the time whose waits are known" if unknown else "the time"
        share = f": {formats.percent(idle / (trained - unknown))} of {known_time}"
    st.markdown(
        f"**{formats.number(each * idle)} of {formats.number(each * trained)} {unit}** passed "
        f"idle, waiting for data{share}. A job has one device for each rank, a GPU or the CPU; "
        "jobs on simulated devices do not count."
    )
    tables.draw(in_units(each, unit), [(cost,) for cost in groups], key="machines-costs")


def headline(live: Sequence[tuple[MachineRun, LiveIdle]]) -> str:
    running = [(work, idle) for work, idle in live if not work.queued]
    if not running:
        return "No job is running."
    jobs = formats.count(len(running), "running job")
    starved = [(work, idle) for work, idle in running if idle.share >= INPUT_BOUND_FRAC]
    if not starved:
        return f"None of {jobs} is starved now."
    idle_devices = sum(work.spent.devices * idle.share for work, idle in starved)
    n_devices = sum(work.spent.devices for work, _ in starved)
    are = "is" if len(starved) == 1 else "are"
    whose = "Its" if len(starved) == 1 else "Their"
    who_waits = f"{whose} {n_devices} devices wait" if n_devices > 1 else "Its device waits"
    share = formats.percent(idle_devices / n_devices)
    return f"{len(starved)} of {jobs} {are} starved now. {who_waits} for data {share} of the time."


def lasted(seconds: float) -> str:
    """Returns how long a job has been starved: 30 s, 12 min, 1 h 05 min; "" for one that is not.

    It is known by half minutes (`BUCKET_S`), and said no finer than that.
    """
    if not seconds:
        return ""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min"
    return formats.seconds(seconds)


@st.cache_resource(show_spinner=False, max_entries=256)
def _kept(run_id: int) -> LiveIdle:
    return LiveIdle()


def idle_of(work: MachineRun) -> LiveIdle:
    """Returns how idle a live run is, with the steps that are new since the last time."""
    idle = _kept(work.id)
    if work.queued:
        return idle
    with ADDING:  # of several sessions each would add the same steps
        idle.add(resources.store().steps(work.id, after=idle.last, names=NAMES))
    return idle
