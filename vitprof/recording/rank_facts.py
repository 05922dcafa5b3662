"""The facts of a run that has several ranks."""

from typing import NotRequired

from typing_extensions import TypedDict


class OfRank(TypedDict):
    """One rank of a distributed job, over the steps that all ranks made."""

    rank: int
    """Its number."""
    data_wait_frac: float | None
    """Share of the time blocked in next(loader)."""
    exposed_frac: float | None
    """The part of that which cost device time."""
    own_ms: float | None
    """Mean milliseconds of a step before the collective: exposed data wait; where they are known,
    what it does between two steps and the forward pass."""
    given: float | None
    """Numbers in its batches' largest tensor as a multiple of the other ranks' median."""
    last_frac: float | None
    """Share of the steps in which it was last."""
    waits_for_others_frac: float | None
    """Share of the time in which it waited for the last one."""


class RestartFacts(TypedDict):
    """A start of a training by its launcher, after the first one."""

    step: int
    """Its first step."""
    meeting: str
    """An id that its processes have in common on all nodes; empty where there is none."""


class NodeFacts(TypedDict):
    """A node of a distributed job that several programs recorded."""

    host: str
    """Name of the machine."""
    ranks: list[int]
    """The ranks that it trained."""
    clock_error_s: float | None
    """Error of its moments against those of the node of rank 0; null where they were taken by the
    clocks' UTC."""
    matched_by: NotRequired[str]
    """By what it is known as one of the job: id (of the store by which the processes met, which no other
    job has), launcher (address, port, the launcher's id and when it began), or address (without
    that id)."""
    others_cores: float | None
    """Cores that other programs took there, on average; null where that is not known."""
    disk_mb_per_s: float | None
    """What its disks delivered, on average; null where that is not known."""
    clocks: dict[str, float]
    """Median clock of the GPU of each of its ranks (MHz), by the rank's number; empty where not
    known."""


class RankFacts(TypedDict):
    """The ranks of a distributed job: which one the others wait for."""

    figures: list[OfRank]
    """Each rank."""
    n_steps: int
    """Steps that all of them made, without warm-up."""
    lost_s: float | None
    """How much earlier the last rank would be if all had their data at once, summed over the
    steps."""
    lost_frac: float | None
    """The same as a share of the time."""
    straggler: int | None
    """The rank that the others wait for; null where there is none, or it cannot be told."""
    stragglers: list[int]
    """It, and others that are as late."""
    within: list[int]
    """The first and last step of each stretch in which it is late, where it is so for a time only."""
    cause: str
    """input, heavier data, compute, between steps, or machine."""
    on: str
    """The straggler's node; empty where there is one."""
    machine: str
    """What was found of that machine, where it is the cause."""
    saves: list[float | None]
    """Share of the time that it holds up the others, and its interval."""
    wandering: bool
    """Whether another rank is last each time."""
    of_epochs: list[list[int]]
    """Epoch, and the rank that was last in most of its steps."""
    one_off: list[float]
    """Steps in which one rank held up the others for several steps' time, and the seconds of
    that."""
    one_off_frac: NotRequired[float]
    """The share of the time of that."""
    one_off_ranks: list[int]
    """Those ranks."""
    waits_alone: bool
    """Whether only waits for data were compared, as the time of the forward pass is not known."""
    not_all: NotRequired[int]
    """Steps that one rank made and another did not."""
    not_between: int
    """Steps of which it is not known what a rank did before them."""
    not_between_frac: NotRequired[float]
    """Their share of the time."""
    not_forward: NotRequired[int]
    """Steps that are not compared, as another collective is in their forward pass."""
    not_forward_frac: NotRequired[float]
    """Their share of the time."""
    waiting: NotRequired[list[float]]
    """A rank that waits for others outside the backward pass, too, and the share of the time of
    that; empty where that is little, or not seen."""
    in_doubt: NotRequired[bool]
    """Whether what data cost is not known, as one does so, and their waits for data differ."""
    why_not: str
    """Why nothing can be told; empty where it can."""
    sentences: list[str]
    """All of that in words."""
