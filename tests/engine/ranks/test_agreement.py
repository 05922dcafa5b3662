"""All ranks end after the same number of steps, however far each is when rank 0 wants to end."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_fixtures import wait_until
from vitprof.engine.ranks.agreement import SPENT, STOPPED, Agreement, agreement_bytes

Pair = tuple[Agreement, Agreement]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with (tmp_path / "shared").open("w+b") as file:
        file.truncate(agreement_bytes(2))
        yield Agreement(file.fileno(), 0, 2), Agreement(file.fileno(), 1, 2)


def test_rank_0_ends_at_once_where_the_other_has_not_gone_on(pair: Pair) -> None:
    zero, one = pair
    assert [rank.ends(1) for rank in pair] == [0, 0]
    assert zero.ends(2, STOPPED) == STOPPED
    assert one.ends(2) == STOPPED
    assert zero.ends(2, SPENT) == STOPPED, "what was agreed is kept"


def test_rank_0_makes_the_step_that_the_other_has_begun(pair: Pair) -> None:
    zero, one = pair
    assert [one.ends(1), one.ends(2), zero.ends(1)] == [0, 0, 0], "the other makes step 3 now"
    assert zero.ends(2, SPENT) == 0
    assert [zero.ends(3, SPENT), one.ends(3)] == [SPENT, SPENT]


def test_the_other_waits_until_it_is_final(pair: Pair) -> None:
    zero, one = pair
    zero._shared[0] = 4  # as while rank 0 looks how far the other is
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(one.ends(4)))
    thread.start()
    wait_until(lambda: zero._shared[4] == 5, "the other's wish to make step 5")
    assert not ended
    zero._shared[0] = 5
    zero._shared[1] = 1
    thread.join()
    assert ended == [0], "it makes step 5, too"
