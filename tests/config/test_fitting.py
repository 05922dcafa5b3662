"""The model and the batch that fit a user's own images."""

from dataclasses import replace

import pytest

from vitprof.config.fitting import Fit, fit
from vitprof.datasets.catalog import DATASETS

OWN = replace(DATASETS["photos"], name="pets", any_size=False, own_bytes=1)


@pytest.mark.parametrize(
    ("n_train", "side", "on_cpu", "model", "batch_size"),
    [
        (540, 224, False, "ti/16", 16),  # 33 steps
        (540, 64, False, "tiny", 16),
        (1_000, 224, False, "ti/16", 32),
        (1_000_000, 224, False, "ti/16", 128),
        (1_000_000, 224, True, "ti/16", 16),
        (1_000_000, 32, True, "tiny", 128),
        (23, 32, True, "tiny", 8),
        (3, 224, True, "ti/16", 3),
    ],
)
def test_own_images_get_a_model_of_their_size_and_30_steps_of_an_epoch(
    n_train: int, side: int, on_cpu: bool, model: str, batch_size: int
) -> None:
    info = replace(OWN, n_train=n_train, n_test=1, image_size=side)
    assert fit(info, on_cpu=on_cpu) == Fit(model, batch_size)


def test_vitprofs_own_sets_keep_the_defaults() -> None:
    assert fit(DATASETS["digits"], on_cpu=True) == Fit("tiny", 128)


def test_it_is_said_in_a_line() -> None:
    info = replace(OWN, n_train=540, n_test=60)
    found = fit(info, on_cpu=False)
    assert found.words(info) == "600 images of 224 x 224: model ViT ti/16, batch 16"
    assert found.words(info, ["batch_size"]) == "600 images of 224 x 224: batch 16"
