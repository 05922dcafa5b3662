"""What a setting does to the losses: held against scripts that give the same ones twice, and others that do not."""

import numpy as np
import pytest

from vitprof.analysis.tournament.entries import LossEffect, Losses, loss_effect

UNKNOWN, SAME = LossEffect("unknown"), LossEffect("same")


def run(*parts: tuple[int, float], n: int = 10, begins: int = 0) -> Losses:
    """A run whose losses are other ones, by so much, from a step on."""
    step = np.arange(begins, n, dtype=float)
    loss = 5 - step / 10
    for at, by in parts:
        loss = np.where(step >= at, loss + by, loss)
    return Losses(step, loss)


LOST = Losses(np.arange(10.0), np.full(10, np.nan))


@pytest.mark.parametrize(
    ("as_it_is", "mine", "expected"),
    [
        ([], [run()], UNKNOWN),
        ([run(), run()], [], UNKNOWN),
        ([LOST, LOST], [run()], UNKNOWN),
        ([run(), run()], [LOST], UNKNOWN),
        ([run(), run()], [run(begins=12, n=20)], UNKNOWN),
        ([run()], [run()], SAME),
        ([run(), run()], [run(n=5), run()], SAME),
        ([run(), run()], [run((4, 1e-15))], LossEffect("changes", 4)),
        ([run(), run()], [run((4, 1.0)), run((4, 1.0))], LossEffect("changes", 4)),
        ([run(), run()], [run((4, 1.0)), run((4, 1.0), (6, 0.1))], LossEffect("changes", 4, 6)),
        ([run()], [run((4, 1.0))], LossEffect("not yet", 4)),
        # the unchanged script gives other losses each time
        ([run(), run((3, 0.1))], [run((2, 0.2))], LossEffect("differs by itself", 3)),
        (
            [run(), run((3, 0.1))],
            [run((2, 0.2)), run((4, 0.3))],
            LossEffect("differs by itself", 3),
        ),
        (
            [run(), run((3, 0.1))],
            [run((1, 0.2)), run((1, 0.2), (5, 0.3))],
            LossEffect("changes", 1, 5),
        ),
    ],
)
def test_effect(as_it_is: list[Losses], mine: list[Losses], expected: LossEffect) -> None:
    assert loss_effect(as_it_is, mine) == expected


def test_in_words() -> None:
    assert LossEffect("changes", 4).sentence == "changes the losses: from step 4"
    assert LossEffect("changes", 4, 6).sentence.endswith(
        "from step 4, and they differ from run to run from step 6"
    )
    later = "the losses differ from step 0 on; the next round tells whether by chance"
    assert LossEffect("not yet", 0).sentence == later
    assert SAME.sentence == UNKNOWN.sentence == ""
    by_itself = LossEffect("differs by itself", 3)
    assert by_itself.sentence == "the unchanged script's losses differ from run to run, from step 3"
