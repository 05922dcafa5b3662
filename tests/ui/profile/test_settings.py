"""The sidebar's form: which settings a strategy shows, and the config they make."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import add_run, captions, drawn_by, read
from vitprof.config import KNOBS, PARTS, RunConfig, availability
from vitprof.config.availability import Machine
from vitprof.config.bounds import RUN_BOUNDS
from vitprof.config.parts import why_not
from vitprof.config.resolve import resolve
from vitprof.config.strategies import STRATEGIES
from vitprof.datasets.catalog import dataset_info
from vitprof.store import RunStore
from vitprof.ui import resources
from vitprof.ui.own_sets import BELOW

PLENTY = Machine(gpus=(), ram_bytes=1 << 40, disk_bytes=1 << 40, tmpfs=(Path("/dev/shm"), 1 << 40))


def script() -> None:
    import streamlit as st

    from vitprof.ui.profile.settings import settings_form, use_config

    if "sent" in st.session_state:
        st.session_state["set-storage"] = st.session_state.pop("sent")
    if "put" in st.session_state:
        use_config(st.session_state.pop("put"))
    st.session_state["made"], _ = settings_form()


@pytest.fixture(autouse=True)
def _a_machine_with_everything(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    st.cache_resource.clear()
    monkeypatch.setattr(resources.availability, "look_around", lambda: PLENTY)
    monkeypatch.setattr(availability, "installed", lambda package: True)
    yield
    st.cache_resource.clear()


def form(**query: str) -> AppTest:
    return drawn_by(script, **query)


def made(at: AppTest) -> RunConfig:
    assert not [e.value for e in at.error]
    config: RunConfig = at.session_state["made"]
    return config


def keys(at: AppTest) -> set[str]:
    widgets = [*at.selectbox, *at.number_input, *at.checkbox]
    # the folder picker is no setting
    return {w.key.removeprefix("set-") for w in widgets if w.key != BELOW}


def test_each_strategy_shows_its_knobs_and_runs_as_it_stands_in_the_registry() -> None:
    """All in one session, so that nothing of one strategy stays behind in the next."""
    dataset = "digits"
    at, info = form(dataset=dataset), dataset_info(dataset)
    for name, plan in STRATEGIES.items():
        at.selectbox(key="set-strategy").set_value(name).run()
        assert not at.exception
        parts = plan.combination(info)
        if why_not(info, parts):
            assert at.button(key="run-button").disabled
            assert "cannot load digits" in read(at.error[0].value)
            continue
        assert resolve(made(at)) == resolve(
            RunConfig(strategy=name, dataset=dataset, seconds=20, evaluate=False)
        ), name
        assert keys(at) & set(KNOBS) == set(plan.knobs(parts, info)), name


def test_five_settings_come_first_and_the_others_are_in_one_drawer() -> None:
    first = {"dataset", "device", "batch_size", "strategy", "budget", "seconds"}
    for strategy, more in (("memory", set()), ("workers", {"workers"}), ("cache", set())):
        at = form(strategy=strategy)
        (drawer,) = (box for box in at.expander if box.label == "Advanced")
        inside = [*drawer.selectbox, *drawer.number_input, *drawer.checkbox]
        hidden = {widget.key.removeprefix("set-") for widget in inside}
        assert keys(at) - hidden == first | more, strategy
    assert "Changed there" not in captions(form(strategy="memory", batch_size="64", steps="9"))


def test_a_setting_in_the_drawer_that_a_link_names_is_taken_and_said() -> None:
    at = form(strategy="cache", seed="7", loader_times="false", n_images="9")
    assert (made(at).seed, made(at).loader_times) == (7, False)
    assert "Changed there: Seed: 7; Measure inside the loader: off" in captions(at)


def test_a_long_name_is_cut_and_the_page_says_so() -> None:
    at = form(name="n" * 201)
    assert "Name of the run: cut to the first 200 characters" in read(at.warning[0].value)
    assert made(at).name == "n" * 200
    assert "Cut to" not in captions(at)
    at.text_input(key="set-name").set_value("m" * 201).run()
    assert "Cut to the first 200 characters: names are no longer than that." in captions(at)
    assert made(at).name == "m" * 200


def test_another_strategy_starts_from_its_own_settings() -> None:
    at = form(strategy="cache")
    at.number_input(key="set-cache_mb").set_value(128.0).run()
    assert made(at).cache_mb == 128
    at.selectbox(key="set-strategy").set_value("hdf5").run()
    assert made(at).cache_mb is None
    assert at.number_input(key="set-cache_mb").value is None
    at.selectbox(key="set-strategy").set_value("cache").run()
    assert at.number_input(key="set-cache_mb").value == STRATEGIES["cache"].defaults["cache_mb"]


def test_offered_parts_fit_the_others() -> None:
    at = form(strategy="threads")
    info, plan = dataset_info("digits"), STRATEGIES["threads"]
    for kind in PARTS:
        offered = at.selectbox(key=f"set-{kind}").options
        assert offered[0] == f"strategy's own: {getattr(plan.combination(info), kind)}"
        assert all(
            why_not(info, plan.combination(info, {kind: name})) is None for name in offered[1:]
        )
    assert {"dataloader", "generator", "spdl"} == set(at.selectbox(key="set-loader").options[1:])
    assert "hdf5" not in at.selectbox(key="set-storage").options


def test_words_of_a_page_drawn_before_are_no_value() -> None:
    """The browser sends the words of an option, and whoever is quick sends those of the page before."""
    at = form(strategy="workers")
    at.session_state["sent"] = "strategy's own: memory"
    at.run()
    assert not at.exception
    assert made(at).storage is None


def test_parts_bring_their_settings_along_also_from_the_url() -> None:
    at = form(strategy="hdf5")
    assert "slow_drive" not in keys(at)
    at.selectbox(key="set-location").set_value("slow-drive").run()
    assert {"slow_drive", "slow_mb_s", "slow_latency_ms"} <= keys(at)
    assert not at.number_input(key="set-slow_mb_s").proto.HasField("default"), "it can be emptied"
    at.number_input(key="set-slow_mb_s").set_value(5.0).run()
    config = made(at)
    assert (config.location, config.slow_mb_s, config.storage) == ("slow-drive", 5.0, None)
    at.selectbox(key="set-location").set_value("").run()
    assert "slow_drive" not in keys(at)
    assert (made(at).location, made(at).slow_mb_s) == (None, None)
    at = form(strategy="hdf5", location="slow-drive", slow_latency_ms="3", workers="0")
    config = made(at)
    assert (config.location, config.slow_latency_ms, config.workers) == ("slow-drive", 3.0, 0)
    assert not {"prefetch_factor", "persistent_workers", "start_method"} & keys(at)
    assert not at.warning
    at = form(strategy="hdf5", loader="threads")
    assert "loader threads: it cannot read storage hdf5" in read(at.error[0].value)
    assert at.button(key="run-button").disabled


def test_what_cannot_be_in_the_url_is_named_and_put_back() -> None:
    wrong = dict.fromkeys(RUN_BOUNDS, str(10**12)) | dict.fromkeys(PARTS, "tape")
    at = form(dataset="photos", strategy="slow-drive", **wrong)
    warning, config = read(at.warning[0].value), made(at)
    for field, bounds in RUN_BOUNDS.items():
        assert bounds.allowed in warning
        assert getattr(config, field) != 10**12
    for field in PARTS:
        assert f"{field.capitalize()} tape: choose one of " in warning
        assert getattr(config, field) is None
    for query, words in (
        (
            {"strategy": "nope", "evaluate": "perhaps"},
            ("Strategy nope", "Evaluate on the test set perhaps"),
        ),
        ({"batch_size": "70000"}, ("60000 samples",)),
        ({"image_size": "30"}, ("7 px patches",)),
        ({"seconds": "0.5", "workers": "300", "strategy": "workers"}, ()),
        ({"epochs": "2"}, ()),
    ):
        at = form(**query)
        shown = read(" ".join(element.value for element in [*at.warning, *at.error]))
        assert (bool(shown), [word for word in words if word not in shown]) == (bool(words), [])


def test_the_number_of_images_is_asked_for_where_it_can_be_chosen() -> None:
    at = form(device="simulated:x")
    assert "simulated\\::color[x]\\:" in at.warning[0].value, (
        "else a colon on each side makes an emoji of it"
    )
    assert "n_images" not in keys(at)
    at.selectbox(key="set-dataset").set_value("photos").run()
    assert made(at).n_images is None
    assert "takes 28 px: the device resizes the images of 224 px" in captions(at)
    at.number_input(key="set-n_images").set_value(500).run()
    assert made(at).n_images == 500
    at.selectbox(key="set-dataset").set_value("digits").run()
    assert made(at).n_images is None


def test_what_cannot_run_here_is_marked_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resources.availability, "look_around", lambda: dataclasses.replace(PLENTY, tmpfs=None)
    )
    at = form()
    (marked,) = (o for o in at.selectbox(key="set-strategy").options if o.startswith("ram-disk"))
    assert "(not here: there is no tmpfs" in marked
    at.selectbox(key="set-strategy").set_value("ram-disk").run()
    assert at.button(key="run-button").disabled
    assert read(at.error[0].value).startswith("Not possible here: there is no tmpfs here")
    at.selectbox(key="set-location").set_value("disk").run()
    assert not at.button(key="run-button").disabled
    at.selectbox(key="set-strategy").set_value("prefetch").run()
    assert "Without a GPU there is no copy to overlap" in captions(at), "a limit only"
    assert not at.button(key="run-button").disabled


def test_what_is_prepared_is_said_before_and_after(vitprof_home: Path) -> None:
    assert "prepares hdf5 once (about 52.3 MiB on disk)" in captions(form(strategy="hdf5"))
    directory = vitprof_home / "prepared" / "digits" / "hdf5"
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(json.dumps({"size_bytes": 2**20, "prepare_s": 2.5}))
    assert "hdf5 is prepared (1.00 MiB, took 2.50 s)" in captions(form(strategy="hdf5"))


def test_the_estimate_counts_a_start_as_long_as_the_last_ones(store: RunStore) -> None:
    for startup_s in (9.0, 7.0, 30.0):
        run_id = add_run(store)
        summary = dataclasses.replace(store.run(run_id).summary, startup_s=startup_s)
        store.update_run(run_id, summary=summary)
    words = captions(form(strategy="memory"))
    assert "About 30 s." in words, "20 s of training, 9 s of start, 1 s to make digits"


def test_of_a_run_only_what_was_chosen_is_taken() -> None:
    for asked in (
        RunConfig(strategy="memory", batch_size=64),
        RunConfig(strategy="workers", workers=0, lr=0.01, device="simulated:1,0,launch=4"),
        RunConfig(
            strategy="per-sample",
            dataset="photos",
            n_images=300,
            location="ram-disk",
            image_size=70,
        ),
        RunConfig(
            strategy="prefetch", compile=True, compile_mode="reduce-overhead", fused_optimizer=True
        ),
    ):
        assert made(drawn_by(script, {"put": resolve(asked)})) == asked


def test_a_widget_that_is_drawn_anew_shows_the_setting() -> None:
    """A browser that did not get a widget's state takes its default for the value, and sends it."""
    given = {
        "batch_size": "96",
        "seconds": "7",
        "seed": "5",
        "device": "simulated:8,20",
        "loader_times": "false",
    }
    at = form(strategy="cache", **given)
    for _ in range(2):
        assert [n.proto.default for n in at.number_input] == [n.value or 0 for n in at.number_input]
        assert [c.proto.default for c in at.checkbox] == [c.value for c in at.checkbox]
        lists = [s for s in at.selectbox if s.key != BELOW]
        assert [s.options[s.proto.default] for s in lists] == [
            s.format_func(s.value) for s in lists
        ]
        assert {"96", "7", "5", "8", "20"} <= {f"{n.proto.default:g}" for n in at.number_input}
        at.run()


def test_a_number_is_taken_as_it_was_typed() -> None:
    """In a field of whole numbers Streamlit's part in the browser reads 1e9 as 1 and 2.5 as 2."""
    at = form()
    field = at.number_input(key="set-batch_size")
    assert (field.proto.data_type, field.proto.format) == (field.proto.FLOAT, "%g")
    for typed, said_so in ((1e9, "1000000000"), (2.5, "2.5"), (1e30, "1e+30")):
        at.number_input(key="set-batch_size").set_value(typed).run()
        assert read(at.error[0].value).startswith(f"Batch size {said_so}: give a whole number")
        assert at.button(key="run-button").disabled
        # where no number is typed next, the browser goes back to the default
        assert at.number_input(key="set-batch_size").proto.default == typed
    at.number_input(key="set-batch_size").set_value(1e2).run()
    assert repr(made(at).batch_size) == "100"


def test_a_wrong_number_is_said_until_it_is_put_right() -> None:
    at = form()
    at.number_input(key="set-batch_size").set_value(0).run()
    assert "Batch size 0: give a whole number from 1 to" in read(at.error[0].value)
    at.number_input(key="set-seconds").set_value(0.0).run()
    both = read(at.error[0].value)
    assert ("Batch size 0: give a whole" in both, "Seconds 0" in both) == (True, True), (
        "not one after the other"
    )
    at.number_input(key="set-batch_size").set_value(64).run()
    assert read(at.error[0].value).startswith("Seconds 0")
    at.number_input(key="set-seconds").set_value(5.0).run()
    assert (len(at.error), len(at.warning), at.button(key="run-button").disabled) == (0, 0, False)


def test_run_says_how_many_come_first_as_long_as_it_is_so(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count was read when the page was drawn, and stood there when the runs had long ended."""
    counts = [1, 0]  # when the page is drawn, and when it is looked at again

    def n_ahead(device: str, shares: bool) -> int:
        return counts.pop(0) if counts else 0

    monkeypatch.setattr("vitprof.ui.profile.settings._n_ahead", n_ahead)
    at = form()
    assert not at.exception
    assert at.button(key="run-button").label == "Run"
    assert not counts
