"""The benchmark of watching: its arithmetic, whose CPU time is whose, and a tiny loop. No figure is judged."""

from typing import Any

import pytest

from benchmarks import watching


def found(step_ms: float, own: float, others: float = 0.0) -> dict[str, Any]:
    """A round: steps of `step_ms`, CPU of each step in microseconds."""
    cpu = {"own": own / 1e6, "workers": 0.0, "others": others / 1e6}
    return {"steps_s": [step_ms / 1e3] * 4, "cpu_s": cpu}


@pytest.mark.parametrize(
    ("collector", "noise", "told"),
    [
        (4.0, 1.0, "0.70% with workers and collector: met; below TraceML; below gpuprof"),
        (20.0, 1.0, "1.50% with workers and collector: MISSED; below TraceML; NOT below gpuprof"),
        (4.0, 50.0, "0.70% with workers and collector: undecided; undecided against TraceML; "),
    ],
)
def test_the_gate_is_on_all_the_cpu_time_that_is_added(
    collector: float, noise: float, told: str
) -> None:
    rows = {("1.5-0", tool): watching.Watched("1.5-0", tool) for tool in watching.TITLES}
    rounds = {
        "bare": (1000.0, 0.0),
        "watch": (1010.0, collector),
        "traceml": (1020.0, 30.0),
        "gpuprof": (1020.0, 0.0),
    }
    for tool, (spent, beside) in rounds.items():
        for number, of_round in enumerate((-noise, 0.0, noise)):
            watching.add(
                rows["1.5-0", tool],
                number,
                found(2.0, spent + of_round * (tool == "watch"), beside),
            )
    assert watching.gate(rows["1.5-0", "watch"], rows, 1.5).startswith(f"0.50% of a step, {told}")
    assert ": " not in watching.gate(rows["1.5-0", "watch"], rows, 0.5), (
        "nothing is asked of shorter steps"
    )
    assert watching.gate(rows["1.5-0", "bare"], rows, 1.5) == ""
