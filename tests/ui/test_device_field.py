"""The device: GPUs by name, times of one's own, and one setting for two pages."""

import dataclasses
from collections.abc import Iterator

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.ui.dashboard import captions, drawn_by, read
from vitprof.config import gpu_findings
from vitprof.config.gpu_findings import TorchBuild
from vitprof.telemetry.visible import VisibleGpu
from vitprof.ui import resources
from vitprof.ui.device_field import OWN

H100 = VisibleGpu(0, "NVIDIA H100 80GB HBM3", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 80e9)


def script() -> None:
    import streamlit as st

    from vitprof.ui.device_field import draw_device
    from vitprof.ui.widgets import settings

    settings().update(st.session_state.pop("elsewhere", {}))
    draw_device("here")
    st.session_state["device"] = settings()["device"]


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[VisibleGpu]]:
    st.cache_resource.clear()
    found: list[VisibleGpu] = []
    monkeypatch.setattr(resources.visible, "visible_gpus", lambda: found)
    yield found
    st.cache_resource.clear()


def field(**query: str) -> AppTest:
    return drawn_by(script, **query)


def warnings(at: AppTest) -> list[str]:
    mark = ":material/warning: "
    return [text.removeprefix(mark) for c in at.caption if (text := read(c.value)).startswith(mark)]


def test_a_gpu_that_cannot_be_used_is_said_beside_it(
    gpus: list[VisibleGpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_findings, "torch_build", lambda: TorchBuild("2.15.0+cu132", (13, 2)))
    gpus.append(VisibleGpu(0, "Tesla T4", "GPU-1", 15e9, cuda_driver=(12, 2), capability=(7, 5)))
    monkeypatch.setattr(resources, "driver", lambda: "535.104")
    at = field()
    assert at.selectbox(key="here").options[0] == "automatic: the CPU"
    (line,) = warnings(at)
    told = "NVIDIA driver 535.104: it knows CUDA up to 12.2, and PyTorch 2.15.0+cu132 is built for CUDA"
    assert line.startswith(told)
    assert not warnings(field(device="cpu"))
    assert not warnings(field(device="simulated:h100"))
    st.cache_resource.clear()
    gpus[0] = dataclasses.replace(gpus[0], cuda_driver=(13, 0))
    assert not warnings(field())
    (line,) = warnings(field(precision="bf16"))
    assert line.startswith("Tesla T4: it has no units for bf16")


def test_what_is_offered(gpus: list[VisibleGpu]) -> None:
    at = field()
    options = at.selectbox(key="here").options
    assert options[0] == "automatic: the CPU"
    assert not at.caption, "it fits its field, and is not said again below"
    assert {"H100, simulated", "A100, simulated", "laptop RTX 4060, simulated"} < set(options)
    assert options[-2:] == ["own simulated device", "cpu"]
    st.cache_resource.clear()
    gpus.append(H100)
    assert field().selectbox(key="here").options[:2] == [
        "automatic: H100 80GB HBM3",
        f"cuda:0 ({H100.name})",
    ]
    st.cache_resource.clear()
    gpus.append(dataclasses.replace(H100, index=1, uuid="GPU-8932aaaa-d72c-4106-c12f-20bd9faed9f6"))
    assert field().selectbox(key="here").options[
        1:3
    ] == [  # two of a name: the UUID tells them apart
        f"cuda:0 ({H100.name}, GPU-8932f937)",
        f"cuda:1 ({H100.name}, GPU-8932aaaa)",
    ]


def test_a_gpu_by_name_or_times_of_ones_own() -> None:
    at = field(model="s/16", precision="bf16")
    at.selectbox(key="here").set_value("simulated:h100").run()
    assert at.session_state["device"] == "simulated:h100"
    assert (
        "6 ms a step and 265 µs a sample with ViT s/16 in bf16, derived from published figures"
        in captions(at)
    )
    assert "timm" in at.caption[0].help
    at.selectbox(key="here").set_value("cpu").run()
    assert captions(at) == ""
    at = field()
    at.selectbox(key="here").set_value(OWN).run()
    assert at.session_state["device"] == "simulated:50,100"
    at.number_input(key="here-ms").set_value(3.5).run()
    at.number_input(key="here-us").set_value(0.0).run()
    assert at.session_state["device"] == "simulated:3.5,0"
    at.run()
    assert at.session_state["device"] == "simulated:3.5,0"


def test_times_from_the_url_from_elsewhere_and_as_typed_are_in_the_fields() -> None:
    at = field(device="simulated:10,50")
    assert (at.selectbox(key="here").value, [n.value for n in at.number_input]) == (
        OWN,
        [10.0, 50.0, 0.0],
    )
    at.session_state["elsewhere"] = {"device": "simulated:1,2,launch=3"}
    at.run()
    assert [n.value for n in at.number_input] == [1.0, 2.0, 3.0]
    at.session_state["elsewhere"] = {"device": "simulated:a100"}
    at.run()
    assert (at.selectbox(key="here").value, len(at.number_input)) == ("simulated:a100", 0)
    at = drawn_by(script, {"here": "simulated:7,8"})  # as the browser sends it
    assert (at.selectbox(key="here").value, [n.value for n in at.number_input]) == (
        OWN,
        [7.0, 8.0, 0.0],
    )
    assert at.session_state["device"] == "simulated:7,8"
