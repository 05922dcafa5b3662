"""Rules about a GPU's software: what NVML and PyTorch say, and the line that comes of it."""

from typing import Any

import pytest
import torch

from vitprof.config import gpu_findings as rules
from vitprof.config.gpu_findings import TorchBuild, read_build, torch_build
from vitprof.telemetry.visible import VisibleGpu

TORCH = "2.15.0+cu132"


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "torch_build", lambda: TorchBuild(TORCH, (13, 2)))


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize(
    ("driver", "cuda_driver", "knows"),
    [
        ("535.104.05", (12, 2), "it knows CUDA up to 12.2"),
        ("550.54", None, "it knows CUDA up to 12"),
        ("390.48", None, "it knows no CUDA that PyTorch still supports"),
    ],
)
def test_a_driver_that_is_too_old(
    driver: str, cuda_driver: rules.Version | None, knows: str
) -> None:
    found: Any = rules.unusable("T4", driver, cuda_driver)
    assert found.verdict == "bad"
    older = (
        ""
        if driver == "390.48"
        else ", or a PyTorch built for CUDA 12 (https://pytorch.org/get-started)"
    )
    assert found.line.startswith(
        f"NVIDIA driver {driver}: {knows}, and PyTorch {TORCH} is built for CUDA 13.2 and "
    )
    assert found.line.endswith(f"; install driver 580 or later{older}")


@pytest.mark.usefixtures("build")
def test_a_driver_that_will_do_or_is_not_known() -> None:
    for driver, cuda_driver in (
        ("580.65.06", (13, 0)),  # an older minor version will do
        (
            "535.104.05",
            (13, 0),
        ),  # NVIDIA's package cuda-compat: a newer libcuda over an older driver
        ("610.10", None),
        ("", None),  # nobody knows
    ):
        assert rules.unusable("T4", driver, cuda_driver) is None


def test_what_cards_and_variables_change() -> None:
    assert rules.bf16_emulated("A100", (8, 0)) is None
    found: Any = rules.bf16_emulated("T4", (7, 5))
    assert found.line.startswith(
        "T4: it has no units for bf16 (compute capability 7.5, they come with 8.0): "
    )
    assert found.line.endswith("; choose precision fp16")
    environ = {
        "CUDA_LAUNCH_BLOCKING": "1",
        "NVIDIA_TF32_OVERRIDE": "",
        "OMP_NUM_THREADS": "4",
        "HOME": "/root",
    }
    assert rules.recorded_variables(environ) == "CUDA_LAUNCH_BLOCKING=1 OMP_NUM_THREADS=4"
    (found,) = rules.changing_variables(environ)
    assert found.line.startswith(
        "CUDA_LAUNCH_BLOCKING=1: each launch waits for its kernel, so nothing overlaps and"
    )
    assert not [*rules.changing_variables({"CUDA_LAUNCH_BLOCKING": "0"})]

    def wheel(driver: str, cuda_driver: rules.Version | None) -> str:
        return rules.dali_wheel(
            [VisibleGpu(0, "T4", "GPU-1", 15e9, cuda_driver=cuda_driver)], driver
        )

    assert wheel("535.104", (12, 2)) == wheel("535.104", None) == "nvidia-dali-cuda120"
    assert wheel("580.65", (13, 0)) == rules.dali_wheel([]) == "nvidia-dali-cuda130"
    assert wheel("470.82", None) == "nvidia-dali-cuda110"


def test_the_build_that_is_installed_is_read_without_importing_it() -> None:
    found: Any = torch_build()
    assert found.version == torch.__version__
    assert found.cuda == (rules._version(torch.version.cuda) if torch.version.cuda else None)
    old = "__version__ = '2.1.0+cpu'\ndebug = False\ncuda = None\ngit_version = 'x'\nhip = None\n"
    assert read_build(old) == TorchBuild("2.1.0+cpu", None)
    assert read_build("hip = '6.4'\n__version__ = '2.9'\n") == TorchBuild("2.9", None, rocm=True)
    assert read_build("debug = False") is None
