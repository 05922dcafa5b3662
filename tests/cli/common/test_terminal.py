"""Signals that are meant for another program."""

import os
import signal

import pytest

from vitprof.cli.common.terminal import (
    remark,
    signals_interrupt,
    signals_relayed,
    stop_requested,
)


def test_signals_are_told_also_those_that_came_early() -> None:
    told: list[int] = []

    def tell(number: int, to_group: bool) -> None:
        assert not to_group
        told.append(number)

    numbers = (signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with signals_relayed() as relay:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGHUP)
        assert not told
        relay.to(tell)
        sent = [signal.SIGINT, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN + 3]
        for number in sent:
            os.kill(os.getpid(), number)
    early, later = told[:2], told[2:]
    assert set(early) == {signal.SIGINT, signal.SIGHUP}
    assert later == sent, "each one, and nothing interrupts"
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_handler_that_is_set_already_is_left_alone() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: came.append(number))
    with signals_relayed():
        os.kill(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)
    assert came == [signal.SIGUSR2]


def test_what_is_ignored_stays_ignored() -> None:
    """As with nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_relayed() as relay:
        relay.to(lambda *_: 1 / 0)
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_closed_terminal_interrupts_a_command_as_sigterm_does() -> None:
    signals_interrupt()
    for number in (signal.SIGHUP, signal.SIGTERM):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    with stop_requested() as asked:
        os.kill(os.getpid(), signal.SIGHUP)
    assert asked.by == "SIGHUP"
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    signals_interrupt()
    os.kill(os.getpid(), signal.SIGHUP)


def test_a_remark_is_a_line_and_a_path_in_it_stays_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    remark("first\n  /data/two  spaces is not there\n")
    assert capsys.readouterr().err == "vitprof: first /data/two  spaces is not there\n"
