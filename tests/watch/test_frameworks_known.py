"""What is known of each training framework."""

import pytest

from vitprof.config.own_script import CALLS
from vitprof.watch.frameworks import FRAMEWORKS, LITTLE_S, OF_FRAMEWORKS_S, little_s, with_loader


@pytest.mark.parametrize("package", [each.package for each in FRAMEWORKS])
def test_each_framework_is_allowed_its_own_work_between_a_batch_and_the_model(package: str) -> None:
    assert little_s({"torch", package}) == OF_FRAMEWORKS_S


def test_a_loop_without_framework_is_allowed_little() -> None:
    assert little_s({"torch", "numpy", "ultralytics_of_mine"}) == LITTLE_S


def test_each_framework_whose_words_advice_uses_is_found() -> None:
    frameworks = CALLS.keys() - {"timm"}  # known by the code that makes the loader
    assert {each.package for each in FRAMEWORKS if each.has_loader} >= {*frameworks, "lightning"}
    for package in frameworks:
        assert with_loader(["torch.utils.data.dataloader", f"{package}.engine", "x"]) == package


def test_the_framework_that_makes_the_loader_is_named_not_the_one_that_wraps_it() -> None:
    assert with_loader(["accelerate.data_loader", "transformers.trainer"]) == "transformers"
    assert with_loader(["accelerate.data_loader", "__main__"]) == ""
