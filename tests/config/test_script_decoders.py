"""How trials of decoders compare files, and in which steps."""

import pytest

from vitprof.config.script_decoders import tried_decoder


@pytest.mark.parametrize(
    ("steps", "batch_size", "workers", "first", "warmup_steps"),
    [
        (100, 32, 0, 20, 1),
        (100, 32, 4, 20, 4),
        (100, 4, 2, 20, 10),
        (40, 4, 2, 16, 8),
        (100, 1, 8, 2, 16),
        (30, 1, 16, 1, 16),
    ],
)
def test_files_are_compared_in_the_first_fifth_of_a_trial_or_in_first_batches(
    steps: int, batch_size: int, workers: int, first: int, warmup_steps: int
) -> None:
    decoder = tried_decoder(
        "opencv", steps=steps, batch_size=batch_size, workers=workers, allows_other_pixels=False
    )
    assert (decoder.first, decoder.warmup_steps) == (first, warmup_steps)
    assert decoder.package == "opencv-python-headless"
