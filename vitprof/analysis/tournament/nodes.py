"""Rounds of a tournament on several machines: each node is a block, so that speeds are compared
within nodes only.

Settings are compared by the ratio of their speeds, so a node's share of a speed is a factor: on
logarithms a term that all settings of a round share (randomised blocks; Montgomery, Design and
Analysis of Experiments, chapter 4).
"""

import math
from collections.abc import Mapping

import numpy as np

from vitprof.analysis import faster

Nodes = Mapping[int, str]
"""Round -> the node that a setting's run was on."""
LEAST_ERROR = 0.01
"""By which runs of one setting differ at least, as a share: no run decides alone how fast a node
is."""


def within_nodes(
    runs: Mapping[str, faster.Rounds], nodes: Mapping[str, Nodes]
) -> dict[str, dict[int, faster.RunBlocks]]:
    """Returns the blocks of each setting's rounds, without what its node was faster or slower by
    than the others: least squares of log speeds on settings and nodes, weighted by how even a run
    was. Rounds on nodes that share no setting with the largest group of nodes are left out, as
    nothing compares with them. On one node they stay as they are.
    """
    placed = [
        (key, number, nodes[key].get(number, ""))
        for key, rounds in runs.items()
        for number in rounds
    ]
    if len({node for _, _, node in placed}) < 2:
        return {key: dict(rounds) for key, rounds in runs.items()}
    connected = _connected({(key, node) for key, _, node in placed})
    kept = [each for each in placed if each[2] in connected]
    keys = sorted({key for key, _, _ in kept})
    names = sorted(connected)
    logs = np.array([math.log(runs[key][number].per_s) for key, number, _ in kept])
    design = np.zeros((len(kept), len(keys) + len(names)))
    for row, (key, _, node) in enumerate(kept):
        design[row, keys.index(key)] = design[row, len(keys) + names.index(node)] = 1
    even = np.array(
        [1 / math.hypot(LEAST_ERROR, _error(runs[key][number])) for key, number, _ in kept]
    )
    effects = np.linalg.lstsq(design * even[:, None], logs * even, rcond=None)[0][len(keys) :]
    of_round = np.array([effects[names.index(node)] for _, _, node in kept])
    shift = dict(zip(names, np.exp(effects - of_round.mean()), strict=True))
    alike: dict[str, dict[int, faster.RunBlocks]] = {key: {} for key in runs}
    for key, number, node in kept:
        alike[key][number] = runs[key][number].slower_by(shift[node])
    return alike


def _error(blocks: faster.RunBlocks) -> float:
    """Returns the standard error of a run's log speed, from its blocks; 1 with too few of them."""
    return math.sqrt(blocks.noise.variance) if blocks.noise.known else 1.0


def _connected(pairs: set[tuple[str, str]]) -> set[str]:
    """Returns the nodes of the largest group whose settings lead from each to each other; `pairs`:
    setting, node."""
    remaining = sorted({node for _, node in pairs})
    best = set[str]()
    while remaining:
        group = set[str]()
        more = {remaining[0]}
        while more != group:
            group = set(more)
            settings = {key for key, node in pairs if node in group}
            more = {node for key, node in pairs if key in settings}
        remaining = [node for node in remaining if node not in group]
        best = max(best, group, key=lambda each: sum(node in each for _, node in pairs))
    return best
