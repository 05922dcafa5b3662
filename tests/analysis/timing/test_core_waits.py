"""Which time is surely the longest: recorded times of transforms, from a machine with and without other programs."""

from __future__ import annotations

import pytest

from vitprof.analysis.timing.core_waits import bounds_of, surely_longest
from vitprof.analysis.timing.loading import heaviest, transform_times, why_unreliable

# Wall ms a sample, and what the own thread, and others of its process, waited for a core: recorded on 2 cores.
ALONE = {
    "Resize": (5.57, 1.62, 0.0),
    "ToTensor": (0.47, 0.12, 0.0),
    "GaussianBlur": (1.67, 0.52, 0.0),
    "Normalize": (0.28, 0.09, 0.0),
}
"""One thread of PyTorch, while other programs used 1.3 cores."""
ONE_THREAD = {
    "Resize": (24.43, 20.21, 0.0),
    "ToTensor": (3.78, 2.98, 0.0),
    "GaussianBlur": (10.28, 8.59, 0.0),
    "Normalize": (1.67, 0.91, 0.0),
}
"""The same beside two busy programs."""
TWO_THREADS = {
    "Resize": (11.68, 8.33, 5.17),
    "ToTensor": (17.03, 12.11, 14.59),
    "GaussianBlur": (15.23, 10.37, 10.87),
    "Normalize": (7.50, 5.55, 5.78),
}
"""Two threads, while other programs used 1.4 cores: three transforms seem to take longer than they do by themselves."""
BLUR_SEEMS_FIRST = {"Resize": (5.0, 0.9, 0.2), "GaussianBlur": (12.0, 3.0, 8.0)}
Waits = dict[str, tuple[float, float, float]]


@pytest.mark.parametrize(
    ("waits", "longest"),
    [
        (ALONE, "Resize"),
        (ONE_THREAD, "Resize"),
        (TWO_THREADS, ""),
        (BLUR_SEEMS_FIRST, ""),
        ({"Resize": (5.0, 0.0, 0.0), "Blur": (4.9, 0.0, 0.0)}, "Resize"),
        ({"Resize": (5.0, 0.02, 0.1), "Blur": (4.9, 0.02, 0.1)}, "Resize"),
        ({"Resize": (0.0, 0.0, 0.0)}, ""),
        ({}, ""),
    ],
    ids=["alone", "one thread", "two threads", "blur first", "quiet", "few waits", "none", "empty"],
)
def test_the_longest_time_is_the_right_one_or_none(waits: Waits, longest: str) -> None:
    """ "A lighter GaussianBlur" was advised first where Resize takes three times as long without other programs."""
    assert surely_longest({name: bounds_of(*each) for name, each in waits.items()}) == longest


def test_a_sleep_is_no_wait_for_a_core() -> None:
    """A drive that takes 8 ms uses no CPU, and is the cause for a good reason."""
    times = {"read": bounds_of(8.3, 0.2, 0.1), "transform": bounds_of(2.0, 0.9, 0.8)}
    assert surely_longest(times) == "read"


def test_bounds_never_fall_below_nothing() -> None:
    bounds = bounds_of(10.0, 6.0, 9.0)
    assert (bounds.at_least, bounds.at_most, bounds.lost_frac) == (0.0, 4.0, 1.0)
    assert bounds_of(10.0, 12.0, 0.0).at_most == 0.0
    assert bounds_of(0.0, 0.0, 0.0).lost_frac == 0.0


def told(waits: Waits) -> dict[str, dict[str, dict[str, float]]]:
    """The facts of a run with such transforms."""
    return {
        "transforms": {
            name: {
                "s_per_sample": took / 1e3,
                "calls": 400,
                "cpu_s_per_sample": 0.9 * took / 1e3,
                "queued_s_per_sample": queued / 1e3,
                "threads_queued_s_per_sample": threads / 1e3,
            }
            for name, (took, queued, threads) in waits.items()
        }
    }


def test_shares_of_transforms_that_cannot_be_trusted_say_why() -> None:
    clear = transform_times(told(ONE_THREAD))
    most = heaviest(clear)
    assert (most and most.name, why_unreliable(clear)) == ("Resize", "")
    unclear = transform_times(told(BLUR_SEEMS_FIRST))
    assert heaviest(unclear) is None
    assert why_unreliable(unclear) == (
        "These shares are not reliable: the threads of GaussianBlur were ready to run and had no core for up to 92% of "
        "its time. Run again when quiet."
    )
    assert unclear[1].cpu_s_per_sample == pytest.approx(10.8e-3)


def test_a_long_wait_in_a_call_that_was_not_looked_at_makes_no_transform_the_heaviest() -> None:
    """`Normalize` was named, which takes a fifth of the time of `GaussianBlur`: one of its calls had waited long."""
    facts = told({"GaussianBlur": (1.6, 0.5, 0.0), "Normalize": (2.4, 0.1, 0.0)})
    named = heaviest(transform_times(facts))
    assert named is not None, "what is seen of these calls alone"
    facts["transforms"]["Normalize"]["looked_s_per_sample"] = 0.3e-3
    assert heaviest(transform_times(facts)) is None
    facts["transforms"]["Normalize"]["looked_s_per_sample"] = 2.5e-3
    named = heaviest(transform_times(facts))
    assert named is not None
    assert named.name == "Normalize"
