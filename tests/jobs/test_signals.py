"""Whether a signal was sent to vitprof alone, or to its whole process group."""

import json
import subprocess
import sys

import pytest

from vitprof.jobs import signals
from vitprof.jobs.signals import GroupWitness, SignalRelay

IN_A_GROUP = """
import json, os, signal
from vitprof.jobs.signals import GroupWitness
witness = GroupWitness()
seen = []
numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGRTMIN + 3)
for number in numbers:
    signal.signal(number, lambda n, _: seen.append([n - signal.SIGUSR1, witness.saw(n)]))
os.kill(os.getpid(), signal.SIGUSR1)
os.killpg(0, signal.SIGUSR1)
os.killpg(0, signal.SIGINT)
os.kill(os.getpid(), signal.SIGUSR1)
# two at once: the second one is known after the first one's holder has gone
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
os.killpg(0, signal.SIGUSR2)
os.killpg(0, signal.SIGRTMIN + 3)
signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
os.kill(os.getpid(), signal.SIGRTMIN + 3)
print(json.dumps([witness.works, *seen]))
os.close(witness._holder.stdin.fileno())
print(witness._holder.wait())
"""


def test_what_was_sent_to_the_group_is_told_from_what_was_sent_to_vitprof_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_GROUP],
        start_new_session=True,
        capture_output=True,
        text=True,
        check=True,
    )
    works, *seen = json.loads(done.stdout.splitlines()[0])
    assert works
    alone, group = False, True
    assert seen[:4] == [[0, alone], [0, group], [-8, group], [0, alone]]
    # which of two that wait is handled first is up to Python
    assert sorted(seen[4:6]) == [[2, group], [27, group]]
    assert seen[6:] == [[27, alone]]
    assert done.stdout.splitlines()[1] == "0", "it ends when this program does"


@pytest.mark.parametrize("broken", ["not started", "killed"])
def test_without_a_witness_a_terminal_is_taken_to_send_to_all(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken == "not started":
        monkeypatch.setattr(signals, "_start_holder", lambda: None)
    witness = GroupWitness()
    if broken == "killed":
        assert witness.works
        witness.close()
    told: list[tuple[int, bool]] = []
    relay = SignalRelay(witness)
    relay.to(lambda number, to_group: told.append((number, to_group)))
    relay(signals.signal.SIGINT)
    relay(signals.signal.SIGUSR1)
    assert told == [(signals.signal.SIGINT, True), (signals.signal.SIGUSR1, False)]
