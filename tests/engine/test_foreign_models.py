"""Models of libraries and of a user's functions, checked with one batch."""

from pathlib import Path

import pytest
import torch

from vitprof.config import RunConfig
from vitprof.config.models import MODELS, model_words
from vitprof.config.resolve import resolve
from vitprof.datasets.own.specs import CODE_ALLOWED
from vitprof.engine.foreign_models import open_foreign
from vitprof.errors import ConfigError

CODE = """
import torch
def net(num_classes):
    layers = torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, num_classes)
    return torch.nn.Sequential(*layers)
def flat(): return torch.nn.Flatten()
def three(): return 3
def fails(): raise RuntimeError("no weights")
"""


def opened(name: str, channels: int = 3) -> torch.nn.Module:
    return open_foreign(name, image_size=32, channels=channels, classes=5)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_librarys_model_has_the_sets_classes(name: str, channels: int) -> None:
    pytest.importorskip(name.partition(":")[0])
    torch.manual_seed(1)
    model, drawn = opened(name, channels), torch.rand(3)
    assert model(torch.rand(2, channels, 32, 32)).shape == (2, 5)
    means = [buffer for key, buffer in model.named_buffers() if "running_mean" in key]
    assert len(means) > 3
    torch.manual_seed(1)
    assert all(
        (b == 0).all() for k, b in opened(name, channels).named_buffers() if "running_mean" in k
    ), "as it was"
    assert torch.equal(torch.rand(3), drawn), "the check takes no random numbers"


def test_a_function_of_the_users_runs_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "mine.py").write_text(CODE)
    with pytest.raises(ConfigError, match="do not run from a page: run it from the command line"):
        opened(f"{file}:net")
    monkeypatch.setenv(CODE_ALLOWED, "1")
    assert opened(f"{file}:net", 1)(torch.rand(4, 1, 32, 32)).shape == (4, 5)
    for name, words in (
        ("flat", r"of 2 images of 3 x 32 x 32 it makes \(2, 3072\), not \(2, 5\)"),
        ("three", "it returns int, not a torch"),
        ("fails", "its code failed: RuntimeError: no weights"),
        ("gone", "has no function gone"),
    ):
        with pytest.raises(ConfigError, match=words):
            opened(f"{file}:{name}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torchvision:resnet1", "torchvision has no such model; it has resnet18"),
        ("torchvision:googlenet", "it makes GoogLeNetOutputs, not"),
        ("torchvision:swin3d_b", "torchvision has no such model"),
        ("torchvision:vit_b_16", "it does not take images of 3 x 32 x 32: AssertionError"),
        ("timm:resnet1", "timm has no such model; it has"),
    ],
)
def test_a_model_that_does_not_fit_is_one_line(name: str, words: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    with pytest.raises(ConfigError, match=words) as caught:
        opened(name)
    assert "\n" not in str(caught.value)


def test_names_are_checked_before_a_job() -> None:
    assert resolve(RunConfig(model="timm:resnet18", strategy="memory")).image_size == 224
    assert (list(MODELS), model_words("tiny")) == (["tiny", "ti/16", "s/16", "b/16"], "ViT tiny")
    assert (len(MODELS), model_words("timm:resnet18")) == (4, "timm:resnet18")
    for name in ("resnet18", "torchvision:", "keras:"):
        with pytest.raises(ConfigError, match="torchvision:NAME, timm:NAME"):
            resolve(RunConfig(model=name))
    with pytest.raises(ConfigError, match="give those of timm:resnet18: simulated:A_MS,B_US"):
        resolve(RunConfig(model="timm:resnet18", strategy="memory", device="simulated:h100"))
