"""The Machines page: which jobs are starved now, since when, what this machine is and does, and what
idle devices cost.

The costs are by machine, user or project.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import streamlit as st

from vitprof import formats
from vitprof.analysis.machines import BUCKET_S, NAMES, LiveIdle, Spent, costs
from vitprof.analysis.thresholds import INPUT_BOUND_FRAC
from vitprof.config import accelerators
from vitprof.config.device_rate import DEVICE_RATE, DeviceRate, device_rate, rate_if_valid
from vitprof.errors import VitprofError, one_line
from vitprof.store.machines import MachineRun, work_since
from vitprof.ui import history_actions, machine_now, resources, tables, texts, widgets

REFRESH_S = 5.0
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
HELP_STARVED = "For how long without a pause, in half minutes and rounded down."
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
        lambda _, idle: tables.in_percent(idle.share),
        bar=True,
        bar_full=100.0,
    ),
    tables.TableColumn("Starved for", HELP_STARVED, lambda _, idle: lasted(idle.starved_s())),
    tables.TableColumn(
        "Idle so far",
        HELP_IDLE,
        lambda work, idle: (
            formats.seconds(work.spent.devices * idle.idle_s) if idle.is_known else ""
        ),
    ),
    tables.TableColumn(
        "Devices",
        "Its ranks, and on what they train.",
        lambda w, _: f"{w.spent.devices} x {accelerators.device_in_words(w.device)}",
    ),
    tables.TableColumn("Name", "Its name.", lambda work, _: work.name),
    tables.TableColumn("User", "Who started it.", lambda work, _: work.spent.user),
    tables.TableColumn(
        "Project", "What VITPROF_PROJECT named.", lambda work, _: work.spent.project
    ),
)
UNITS = (("device-hours", 1), ("device-minutes", 60), ("device-seconds", 3600))
"""Units of devices' time, with how many are an hour."""


def in_units(each: int, unit: str, rate: DeviceRate | None) -> tuple[tables.TableColumn, ...]:
    """Returns the columns of what idle devices cost, in a unit of which `each` are an hour, and in
    money where an hour of a device has a price.
    """
    time = f"({unit})"
    money: tuple[tables.TableColumn, ...] = ()
    if rate is not None:
        per_hour = rate.per_hour
        about = f"At {formats.money(per_hour, rate.currency)} an hour of a device ({DEVICE_RATE})."
        named = f"Idle ({rate.currency})" if rate.currency else "Idle (money)"
        money = (tables.TableColumn(named, about, lambda cost: per_hour * cost.idle_hours),)
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
        *money,
        tables.TableColumn(
            "Idle (%)",
            "Of the time for which it is known.",
            lambda cost: tables.in_percent(cost.idle_frac),
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
    machine_now.draw_machine(facts=True)
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
    work = shown(work_since(resources.store(), 0, simulated=True), chosen)
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


def told_apart(ended: Sequence[Spent]) -> dict[str, str]:
    """Returns what the costs can be divided by, and how that is called: what has several names."""
    divided = {}
    counted = [each for each in ended if math.isfinite(each.trained_s)]
    for name, (label, name_of) in FILTERS.items():
        if len({name_of(each) for each in counted}) > 1:
            divided[name] = label
    return divided


def draw_costs(ended: Sequence[Spent]) -> None:
    st.header("What idle devices cost", anchor=False)
    groups = costs(ended, FILTERS["machine"][1])
    if not groups:
        st.caption(
            "No run on a real device ended in the days chosen under *Filters*: simulated devices "
            "do not count."
        )
        return
    rate = rate_if_valid()
    divided = told_apart(ended)
    if divided:
        first = next(iter(divided))
        widgets.keep_to(list(divided), "machines-by", first)
        by = st.segmented_control(
            "By",
            list(divided),
            default=first,
            format_func=divided.__getitem__,
            key="machines-by",
        )
        groups = costs(ended, FILTERS[by or first][1])
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
        f"idle, waiting for data{share}{_money_in_words(idle, rate)}, in "
        f"{formats.count(sum(cost.runs for cost in groups), 'run')}. "
        "A job has one device for each rank, a GPU or the CPU; jobs on simulated devices do not count."
    )
    _draw_about_price(rate)
    if divided:  # one row would say the same again
        columns = in_units(each, unit, rate)
        tables.draw(columns, [(cost,) for cost in groups], key="machines-costs")


def _draw_about_price(rate: DeviceRate | None) -> None:
    """Says how to give the price of an hour of a device, or what is wrong with the one that is given."""
    if rate is not None:
        return
    try:
        device_rate()
    except VitprofError as error:
        st.caption(texts.escaped(one_line(error)))
        return
    # not a caption: code in one has too little contrast
    st.markdown(
        "To have it in money, start the dashboard with the price of an hour of one device: "
        f"`{DEVICE_RATE}='2.50 USD'`"
    )


def _money_in_words(idle_hours: float, rate: DeviceRate | None) -> str:
    """Returns what idle hours cost, as the end of a sentence; "" without a price."""
    if rate is None:
        return ""
    money = formats.money(idle_hours * rate.per_hour, rate.currency)
    per_hour = formats.money(rate.per_hour, rate.currency)
    return f", {texts.escaped(money)} at {texts.escaped(per_hour)} an hour of a device"


OF_THE_ONLY_JOB = {
    "fed": "The running job is not starved now.",
    "no steps yet": "The running job has no steps yet.",
    "not known": "Whether the running job is starved is not known.",
}
"""What is said of the only job that runs, by its state."""


def headline(live: Sequence[tuple[MachineRun, LiveIdle]]) -> str:
    """Returns how many of the running jobs are starved, in words; simulated devices do not count."""
    running = [(work, idle) for work, idle in live if not work.queued and not work.simulated]
    n_simulated = sum(work.simulated and not work.queued for work, _ in live)
    if not running and n_simulated:
        do = "runs on a simulated one" if n_simulated == 1 else "run on simulated ones"
        return f"No job is running on a real device; {formats.count(n_simulated, 'job')} {do}."
    if not running:
        return "No job is running."
    jobs = formats.count(len(running), "running job")
    starved = [(work, idle) for work, idle in running if idle.share >= INPUT_BOUND_FRAC]
    if not starved and len(running) == 1:
        return OF_THE_ONLY_JOB[state(*running[0])]
    if not starved:
        n_unknown = sum(not idle.is_known for _, idle in running)
        more = f" Of {n_unknown} it is not known." if n_unknown else ""
        return f"None of {jobs} is starved now.{more}"
    of_them = f"{len(starved)} of {jobs} {'is' if len(starved) == 1 else 'are'}"
    if len(running) == 1:
        of_them = "The running job is"
    idle_devices = sum(work.spent.devices * idle.share for work, idle in starved)
    n_devices = sum(work.spent.devices for work, _ in starved)
    whose = "Its" if len(starved) == 1 else "Their"
    who_waits = f"{whose} {n_devices} devices wait" if n_devices > 1 else "Its device waits"
    share = formats.percent(idle_devices / n_devices)
    return f"{of_them} starved now. {who_waits} for data {share} of the time."


def lasted(seconds: float) -> str:
    """Returns how long a job has been starved: under 30 s, 30 s, 12 min, 1 h 05 min; "" for one that is
    not.

    It is known by half minutes (`BUCKET_S`), and said no finer than that.
    """
    if not seconds:
        return ""
    if seconds < BUCKET_S:
        return f"under {BUCKET_S:.0f} s"
    if seconds < 60:
        return f"{BUCKET_S:.0f} s"
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
