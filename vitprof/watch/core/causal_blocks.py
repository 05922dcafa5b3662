"""Blocks of steps in which a stage seemed faster: what each took, and why there may be none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vitprof.watch.core.loop import Step
from vitprof.watch.core.replay_blocks import ReplayBlocks, asks_several
from vitprof.watch.events import Description

KIND = "causal"
"""The kind of a description of a block, of the first look at the stages, or of why there are none."""
TOLD_EVERY = 20
"""So many blocks at a time are told while the run goes on: all of them are told again each time."""
MOST_WORKERS = 128
"""More have no words to share (`causal_ledger`)."""
SEVERAL_LOADERS = "a step asks several loaders for a batch, and a pause of one is none of the other"
RANKS = "ranks wait for each other, and a pause of one is none of the others"
GPU = "a GPU works on while everything else pauses, so this is not measurable on one"
NOT_PYTORCH = "its batches do not come from a DataLoader of PyTorch's alone"
OUT_OF_ORDER = "its loader gives batches out as they come (in_order=False)"
TIMEOUT = "a pause may be longer than the timeout of its loader"
TOO_MANY = f"its loader has more than {MOST_WORKERS} workers"


class CausalBlocks:
    """The blocks so far. Those in which a stage seemed faster are no part of the run, nor are those steps that every
    block begins with."""

    def __init__(self) -> None:
        self.apart = ReplayBlocks(KIND)
        """Keeps their steps apart."""
        self.is_answered = False
        """Whether the process was told which loader trains, or that nothing can be measured."""
        self._refused = ""
        self._told: list[dict[str, Any]] = []

    def answer(self, loader: int, facts: Mapping[str, Any], why_refused: str) -> dict[str, Any]:
        """Returns what the process is told: the loader that trains with its facts, or why nothing can be measured."""
        self.is_answered = True
        self._refused = why_refused
        if why_refused:
            return {"causal": 0, "refused": why_refused}
        return {"causal": loader, "facts": dict(facts)}

    def facts(self, described: Iterable[Description], *, finished: bool) -> dict[str, Any]:
        """Returns the fact "causal"; `described`: all that the process has described."""
        of_blocks = [one.facts for one in described if one.kind == KIND]
        blocks = [facts["block"] for facts in of_blocks if "block" in facts]
        if finished or len(blocks) >= len(self._told) + TOLD_EVERY:
            self._told = blocks
        looks = [facts["look"] for facts in of_blocks if "look" in facts]
        refusals = [facts["refused"] for facts in of_blocks if "refused" in facts]
        fact = {
            "look": looks[0] if looks else None,
            "blocks": self._told,
            "refused": self._refused or (refusals[-1] if refusals else None),
        }
        return {"causal": fact}


def why_refused(
    steps: Sequence[Step],
    process: Mapping[str, Any],
    device: str,
    loader: Mapping[str, Any],
) -> str:
    """Returns why no stage can seem faster in a run; empty where any can. `device`: that which trains; `loader`: what
    is known of the loader."""
    if asks_several(steps):
        return SEVERAL_LOADERS
    if int(process.get("world_size") or 1) > 1:
        return RANKS
    if device != "cpu":
        return GPU
    if "prefetch_factor" not in loader:
        return NOT_PYTORCH
    if loader.get("in_order") is False:
        return OUT_OF_ORDER
    if loader.get("timeout_s"):
        return TIMEOUT
    if loader["num_workers"] > MOST_WORKERS:
        return TOO_MANY
    return ""
