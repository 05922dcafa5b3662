"""The model and the batch that fit a user's own images.

The defaults of a run fit digits: a model of 28 px, and batches of 128. Of photographs such a model
would see a few squares, and 540 of them are 4 steps of an epoch.
"""

from collections.abc import Collection
from dataclasses import dataclass

from vitprof import formats
from vitprof.config import RunConfig, models
from vitprof.datasets.catalog import DatasetInfo

STEPS_OF_AN_EPOCH = 30
"""Steps that an epoch has at least where the set has enough images: as many as a tournament's runs
have steady ones at least."""
LEAST_BATCH = 8
"""Images of a batch at least: with fewer, the cost of a step hides that of its images."""
MOST_ON_CPU = 16
"""Images of a batch of a 224 px model on a CPU, at most: a ViT-Ti/16 computes 7.5 GFLOP for each (3
times the forward pass of 1.26 G multiply-adds, DeiT's table 1), so a batch of 128 takes 10 s at 100
GFLOP/s."""
PHOTO_PX = 224
"""Side of the images that a model of that size fits."""
OF_PHOTOS = "ti/16"
"""The smallest of the 224 px models."""
SETTINGS = ("model", "batch_size")
"""The settings that are fitted: fields of `RunConfig`, and of `Fit`."""


@dataclass(frozen=True)
class Fit:
    """What a run on a data set is set to."""

    model: str
    batch_size: int

    def words(self, info: DatasetInfo, taken: Collection[str] = SETTINGS) -> str:
        """Returns why, such as "600 images of 224 x 224: model ViT ti/16, batch 16".

        `taken`: the settings that are named; the others were chosen by the user.
        """
        images = formats.count(info.n_train + info.n_test, "image")
        side = info.image_size
        named = {
            "model": f"model {models.model_words(self.model)}",
            "batch_size": f"batch {self.batch_size}",
        }
        return f"{images} of {side} x {side}: {', '.join(named[name] for name in taken)}"


def fit(info: DatasetInfo, *, on_cpu: bool) -> Fit:
    """Returns the model and the batch for a data set; those of `RunConfig` for vitprof's own."""
    usual = RunConfig()
    if not info.own_bytes:
        return Fit(usual.model, usual.batch_size)
    model = usual.model
    most = usual.batch_size
    if info.image_size >= PHOTO_PX:
        model = OF_PHOTOS
        if on_cpu:
            most = MOST_ON_CPU
    of_epoch = _power_of_two(info.n_train // STEPS_OF_AN_EPOCH)
    batch_size = min(max(of_epoch, LEAST_BATCH), most, info.n_train)
    return Fit(model, batch_size)


def _power_of_two(n: int) -> int:
    """Returns the largest power of two that is at most `n`; 1 for less than that."""
    return 1 << max(n.bit_length() - 1, 0)
