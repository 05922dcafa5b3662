"""A verdict in words, for page, terminal, report and JSON: made of its fields, in short sentences.

Each clause is a function that returns one thing's sentences, or "" where there is nothing to say.
What is said of a kind of verdict is a list of clauses, in the order in which they are read.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from vitprof.analysis import intervals, thresholds
from vitprof.analysis.signatures.resources import cores_taken_in_words
from vitprof.analysis.timing.loading import STAGE_WORDS
from vitprof.formats import capitalised, count, number, ordinal, percent, seconds
from vitprof.recording.verdict import Advice, NoVerdict, Verdict

LONG_FIRST_S = 0.5
"""Wait for the first batch of the only epoch, in seconds, from which it is named where it would
change the class."""
WHOLE_EPOCHS_FRAC = 0.02
"""Difference of the share over whole epochs from that of the run, which may end within one, for
naming it."""
WORTH_AN_INTERVAL = 1.03
"""High end of a gain, over its value, from which its interval is given."""
MODERATE = f"{thresholds.MODERATE_FRAC * 100:g}"
INPUT_BOUND = f"{thresholds.INPUT_BOUND_FRAC * 100:g}"
CLASSES = (
    f"under {MODERATE}% of the time idle for data is not input-bound, {MODERATE} to {INPUT_BOUND}% "
    f"moderately, over {INPUT_BOUND}% input-bound"
)
"""The classes of the verdict, for help texts."""
CAUSE_NAMES: dict[str, str] = STAGE_WORDS | {
    "transfer": "the copy to the device",
    "epoch_start": "epoch starts",
    "held_up": "a loader that keeps Python from launching",
    "loading": "making batches",
    "slow_drive": "the slow drive",
    "cpu_contention": "other programs",
    "unclear": "not clear, other programs ran",
    "other-programs": "other programs",
    "launches": "launching kernels",
}
"""A verdict's cause, or the signature with that meaning -> its name in a table or a list."""


@dataclass(frozen=True)
class VerdictText:
    """A verdict in words."""

    headline: str
    """The verdict in a word or two: "Input-bound", "Disturbed"."""
    sentences: tuple[str, ...]
    """What was found, the most important first; each ends with a full stop."""
    details: tuple[str, ...]
    """Those of the sentences that say more than the four answers (`answer.Answer`) do."""

    @property
    def whole(self) -> str:
        """Returns all of it in one line."""
        return " ".join((f"{self.headline}.", *self.sentences))

    @property
    def brief(self) -> str:
        """Returns the headline and the first sentence."""
        return " ".join((f"{self.headline}.", *self.sentences[:1]))


Clause = Callable[[Verdict], str]


def render(verdict: Verdict) -> VerdictText:
    """Returns the verdict in words; one that has no fields, of an older version, as it was said
    then."""
    if verdict.device is None:
        headline, _, rest = verdict.sentence.partition(": ")
        return VerdictText(headline, (capitalised(rest),), ())
    if verdict.why_none is not None:
        reason = NO_VERDICT[verdict.why_none.reason](verdict, verdict.why_none)
        others = tuple(said for said in (cores_taken(verdict),) if said)
        return VerdictText(_headline_of_none(verdict.why_none), (reason, *others), others)
    clauses = CLAUSES[verdict.kind]
    if verdict.replay:
        clauses = REPLAYED
    sentences = []
    details = []
    for clause in clauses:
        sentence = clause(verdict)
        if not sentence:
            continue
        sentences.append(sentence)
        answered = clause in ANSWERED and not _has_caveat(clause, verdict)
        if not answered:
            details.append(sentence)
    headline = capitalised(verdict.kind)
    return VerdictText(headline, tuple(sentences), tuple(details))


def in_a_word(verdict: Verdict) -> str:
    """Returns the headline of a verdict as lists, tables and files have it: "input-bound",
    "almost certainly starved"."""
    if verdict.device is None or verdict.why_none is None:
        return verdict.kind
    headline = _headline_of_none(verdict.why_none)
    return headline[0].lower() + headline[1:]


def _has_caveat(clause: Clause, verdict: Verdict) -> bool:
    """Returns whether the sentence on the gain says under which condition it holds."""
    if clause is most_gain:
        return not is_sure(verdict)
    gain = verdict.gain
    if clause is not free_data or gain is None:
        return False
    return gain.lost_less or _estimate_is_low(verdict) or math.isfinite(gain.between_starts)


# What the device waited for.


def _data(verdict: Verdict) -> str:
    return "data and copies" if verdict.copies_included else "data"


DEVICE_IDLED = {
    "gpu": "The GPU was idle",
    "simulated": "The simulated GPU was idle",
    "cpu": "Training on the CPU was stalled",
}
"""What trains -> how a sentence on its waiting begins."""


def idled(verdict: Verdict) -> str:
    """Returns the beginning of a sentence: "The GPU was idle"."""
    if verdict.device == "untested":
        return f"The {verdict.device_name} device (its timing is untested on hardware) was idle"
    return DEVICE_IDLED[verdict.device or "gpu"]


def waiting(verdict: Verdict) -> str:
    """Returns for which share of the time the device waited for data."""
    share = percent(verdict.idle_frac)
    spread = _spread(verdict.idle_frac_low, verdict.idle_frac_high, verdict.n_judged)
    return f"{idled(verdict)} for {_data(verdict)} {share} of the time{spread}."


def _spread(low: float, high: float, n_steps: int) -> str:
    """Returns the interval of a share and the steps that it is from: " (12-14%, 100 steps)"."""
    interval = percent(high)
    if percent(low) != interval:
        interval = f"{percent(low).removesuffix('%')}-{interval}"
    return f" ({interval}, {n_steps:,} steps)"


def single_event(verdict: Verdict) -> str:
    """Returns which single step decides the class."""
    event = verdict.single_event
    if event is None:
        return ""
    wait = f"One wait of {seconds(event.idle_s)}, in step {event.step:,}, decides that"
    return f"{wait}: without it the share is {percent(event.idle_frac_without)}."


def epoch_starts(verdict: Verdict) -> str:
    """Returns how long the waits with which epochs begin are, where they matter."""
    starts = verdict.epoch_starts
    if starts is None:
        return ""
    if not starts.n:
        return _first_epoch(verdict)
    if starts.frac < thresholds.EPOCH_STARTS_FRAC:
        return ""
    seen = "one was seen" if starts.n == 1 else f"{starts.n:,} were seen"
    share = percent(starts.frac)  # beyond what other steps wait, as card and charts have it
    told = f"Longer waits as epochs begin took {share} of the time: {seconds(starts.wait_s)} each, {seen}."
    between = percent(verdict.between_frac)
    told += f" In the steps between them the share is {between}"
    if abs(starts.epoch_frac - verdict.idle_frac) >= WHOLE_EPOCHS_FRAC:
        told += f", over whole epochs {percent(starts.epoch_frac)}"
    return f"{told}."


def _first_epoch(verdict: Verdict) -> str:
    """Returns that the start of the only epoch is not counted, where it would change the class."""
    starts = verdict.epoch_starts
    if starts is None or starts.first_s < LONG_FIRST_S:
        return ""
    edges = (thresholds.MODERATE_FRAC, thresholds.INPUT_BOUND_FRAC)
    if not any(verdict.idle_frac < edge <= starts.epoch_frac for edge in edges):
        return ""
    first = seconds(starts.first_s)
    return f"No second epoch was seen: the wait for the first batch, {first}, is not counted."


def held_up(verdict: Verdict) -> str:
    """Returns for how long the loader kept Python from launching the model's work."""
    by = verdict.held_up
    if by is None:
        return ""
    who = f"{by.n} {by.makers}s" if by.n > 1 else by.makers
    shared = "cores" if by.makers == "worker" else "Python's lock, or cores"
    kept = f"the loader's {who} kept Python from launching work"
    return f"For another {percent(by.frac)} {kept}: they share {shared}."


def outside_steps(verdict: Verdict) -> str:
    """Returns how much of the time passed between steps, and on what it may be spent."""
    if not verdict.outside_frac >= thresholds.OUTSIDE_TOLD_FRAC:
        return ""
    frac = percent(verdict.outside_frac)
    spent_on = "logging, metrics, checkpoints"
    if verdict.n_ranks > 1:
        spent_on += ", waits for other ranks"
    # The other kinds have said how much of the time was a wait.
    share = frac if verdict.kind == "not input-bound" else f"Another {frac}"
    passed = f"{share} of the time passed between the steps."
    return f"{passed} It may be {spent_on}, or loading that vitprof does not see."


def asleep(verdict: Verdict) -> str:
    """Returns how long the script slept after the model's call, where that may be loading."""
    if not verdict.asleep_frac >= thresholds.OUTSIDE_TOLD_FRAC:
        return ""
    return (
        f"The script slept {percent(verdict.asleep_frac)} of the time after its batch had come. If it "
        "waits for data there, that is loading, too: get that data with the batch."
    )


# What the wait was for.


def slowest_loader(verdict: Verdict) -> str:
    """Returns which of several loaders was waited for most."""
    loader = verdict.slowest_loader
    if loader is None:
        return ""
    which = "loader"
    if loader.n_alike > 1:
        which = f"{ordinal(loader.nth)} of {loader.n_alike} loaders"
    return f"{percent(loader.frac)} of the wait was for the {which} of {loader.dataset}."


CAUSE_SUBJECTS: dict[str, str] = {
    "sampler": "The sampler, which gives the indices of each batch, was",
    "transform": "Transforms on the CPU were",
    "collate": "Collating samples into batches was",
    "rest": "Python between the stages of loading (loops, calls, locks) was",
    "hand_over": "Handing finished batches over from the loader's workers was",
    "transfer": "The copy to the device was",
    "loading": "Making batches was",
    "epoch_start": "What begins an epoch, here for each batch (starting workers, a sampler), was",
    "slow_drive": "Reading from the slow drive was",
    "cpu_contention": "Other programs, which kept the CPU busy, were about",
}
"""A verdict's cause -> how a sentence on its share begins; `_cause_subject` has the others."""
DATASET_SUBJECTS = {
    "waits": "The dataset, which mostly waited, was",
    "dataset": "The dataset, without its transforms, was",
}
"""`Verdict.cause_part` of a user's own script that reads -> the same."""


def cause_subject(cause: str, cause_part: str) -> str:
    """Returns how a sentence on the share of a cause begins: "Decoding by PIL was"."""
    if cause == "read" and cause_part in DATASET_SUBJECTS:
        return DATASET_SUBJECTS[cause_part]
    if cause == "read":
        return f"Reading ({cause_part or 'storage'}) was"
    if cause == "decode":
        return f"Decoding by {cause_part or 'PIL'} was"
    if cause == "hand_over" and cause_part == "loop":
        return "The way of a finished batch to the loop was"
    return CAUSE_SUBJECTS[cause]


def main_cause(verdict: Verdict) -> str:
    """Returns what most of the wait was for."""
    begins_each = verdict.cause == "epoch_start" and _mostly_between_starts(verdict)
    # other clauses have said so
    if verdict.cause in ("", "unclear", "epoch_start", "held_up") and not begins_each:
        return ""
    frac = verdict.cause_frac
    of_what = "that"
    if _has_long_starts(verdict) and verdict.cause not in ("cpu_contention", "epoch_start"):
        frac /= sum(share.frac for share in verdict.shares if share.name != "epoch_start")
        of_what = "the wait between epoch starts"
    return f"{cause_subject(verdict.cause, verdict.cause_part)} {percent(frac)} of {of_what}."


def cores_taken(verdict: Verdict) -> str:
    """Returns what other programs took of the cores, and what is not known for it."""
    taken = verdict.cores_taken
    if taken is None or not math.isfinite(taken.cores):
        return ""
    used = cores_taken_in_words(taken)
    is_slow = verdict.kind in ("input-bound", "moderately input-bound")
    if verdict.cause != "unclear" or not is_slow:
        return used
    waited = f"Loading had no core for up to {percent(taken.waited_frac)} of the wait."
    return f"{used} {waited} What takes longest without them is not known."


def _mostly_between_starts(verdict: Verdict) -> bool:
    """Returns whether most of the cause's share is in steps with which no epoch begins: each of these begins an
    iterator, or each step an epoch."""
    starts = verdict.epoch_starts
    return starts is not None and 2 * starts.frac < verdict.cause_frac * verdict.idle_frac


def _has_long_starts(verdict: Verdict) -> bool:
    starts = verdict.epoch_starts
    return starts is not None and starts.frac >= thresholds.EPOCH_STARTS_FRAC


def left_early(verdict: Verdict) -> str:
    """Returns how much of the time workers ended of loops that were left early."""
    if not verdict.left_early_frac > 0:
        return ""
    return f"Another {ended_early(verdict.left_early_frac)}"


def ended_early(frac: float) -> str:
    """Returns what a share of the time is in which workers ended of loops that were left early."""
    return (
        f"{percent(frac)} of the time workers ended, because the loop over their loader was left early (break, "
        "islice). That is loading, too."
    )


def before_model(verdict: Verdict) -> str:
    """Returns how much of the time passed between loader and model, where batches may be
    prepared."""
    if not verdict.before_model_frac > 0:
        return ""
    return f"Another {prepared_before_model(verdict.before_model_frac)}"


def prepared_before_model(frac: float) -> str:
    """Returns what a share of the time between loader and model may be, and what to do."""
    return (
        f"{percent(frac)} of the time passed between the loader and the model. If batches are "
        "prepared there, that is loading, too. Do it in the dataset, or watch what gives the "
        "finished batches: for batch in vitprof.watch(batches)."
    )


# What there is to gain.


def free_data(verdict: Verdict) -> str:
    """Returns how fast the job would be if data were free."""
    gain = verdict.gain
    # where it is not clear what takes the time, it is not clear how much of that is the loader's
    if gain is None or verdict.cause == "unclear":
        return ""
    times = f"{number(gain.times)}x as fast"
    interval = f"{number(gain.low)}-{number(gain.high)}"
    if gain.basis != "estimate" and gain.lost_less:
        measured = f"With free data this job ran {times} ({interval}, measured)."
        return f"{measured} Loading was faster there than in this run: repeat both."
    if gain.basis != "estimate":
        return f"With free data this job runs {times} ({interval}, measured)."
    would = f"With free data this job would run about {times}"
    between = math.isfinite(gain.between_starts)
    if _estimate_is_low(verdict):
        return f"{would}: loading and {verdict.shares_cpu_with} share the CPU."
    if gain.high > WORTH_AN_INTERVAL * gain.times:
        would += f" ({interval})"
    if between:
        measured = f"{number(gain.between_starts)}x was measured"
        return f"{would}. For the steps between epoch starts {measured}."
    return f"{would}."


def _estimate_is_low(verdict: Verdict) -> bool:
    """Returns whether an estimated gain may be too low: without loading, its share of the CPU goes to
    training."""
    if verdict.gain is None or verdict.gain.basis != "estimate" or not verdict.shares_cpu_with:
        return False
    between = math.isfinite(verdict.gain.between_starts)
    return not between and verdict.held_up is None and not _has_long_starts(verdict)


def other_programs(verdict: Verdict) -> str:
    """Returns how much of an estimated gain other programs took, out of a loader's reach."""
    others = verdict.other_programs
    if others is None or verdict.gain is None or verdict.gain.basis != "estimate":
        return ""
    if verdict.cause == "unclear":
        return ""
    if others.slow_training_too:
        return "That was measured while other programs ran; on a quiet machine it may differ."
    without = number(1 / (1 - others.idle_frac_without))
    return f"On a quiet machine faster loading would gain up to about {without}x."


def most_gain_frac(verdict: Verdict) -> float:
    """Returns what free data would gain at most as a share of the speed, by the high end of the
    interval; infinite where all of the time may be lost."""
    lost = verdict.idle_frac_high
    if verdict.held_up is not None:
        lost += verdict.held_up.frac
    return max(0.0, lost / (1 - lost)) if lost < 1 else math.inf


def most_gain(verdict: Verdict) -> str:
    """Returns what free data would gain at most."""
    frac = most_gain_frac(verdict)
    most = percent(frac) if math.isfinite(frac) else "any amount"
    if not is_sure(verdict):
        return f"A faster loader may gain up to {most}: train for longer to find out."
    subject = "An end of these waits" if verdict.shares_cpu_with else "A faster loader"
    return f"{subject} would gain at most {most}."


def is_sure(verdict: Verdict) -> bool:
    """Returns whether the whole interval is in the verdict's class, or above it."""
    if verdict.kind != "not input-bound":
        return True
    return verdict.idle_frac_high < thresholds.MODERATE_FRAC


def where_time_goes(verdict: Verdict) -> str:
    """Returns where the time of a run goes that is not input-bound; where that is not sure, as far as it may be
    loading that was not seen."""
    outside_or_asleep = asleep(verdict) or outside_steps(verdict)
    if outside_or_asleep:
        return outside_or_asleep
    if not is_sure(verdict):
        return ""
    inside_is_unknown = verdict.host_paced and not math.isfinite(verdict.launch_frac)
    if verdict.device == "cpu" or not inside_is_unknown:
        return "The model takes the time, and loading keeps up."
    told = "Loading keeps up. Python launched the steps no faster than they ran."
    if not math.isfinite(verdict.gpu_util_frac):
        return f"{told} For how long the GPU idles inside them is not known."
    inside = percent(max(0.0, 1 - verdict.gpu_util_frac - verdict.idle_frac))
    seen = f"NVML saw a kernel run {percent(verdict.gpu_util_frac)} of the time"
    return f"{told} {seen}, so the GPU may idle inside them for about {inside}."


def launches(verdict: Verdict) -> str:
    """Returns for which share of the time the device waited for Python to launch work."""
    share = percent(verdict.paced_frac)
    spread = _spread(verdict.paced_frac_low, verdict.paced_frac_high, verdict.n_judged)
    waited = "waiting for Python to launch its work"
    told = f"{idled(verdict)} {share} of the time{spread}, {waited}."
    if not verdict.launch_frac >= thresholds.BUBBLES_TOLD_FRAC:
        return told
    return f"{told} {percent(verdict.launch_frac)} were inside the steps, where it looks busy."


def what_a_replay_waits_for(verdict: Verdict) -> str:
    """Returns what remains to wait for in a replay, in which nothing is loaded."""
    where = "on the device" if verdict.replay == "device" else "in host memory"
    copied = sum(share.frac for share in verdict.shares if share.name == "transfer")
    copy = ""
    if verdict.replay == "host" and verdict.cause == "transfer":
        copy = f"the copy ({percent(copied)} of that) and "
    rest = f"What remains is {copy}the loop's own work, not loading"
    return f"This is a replay of batches kept {where}. {rest}."


def next_step(verdict: Verdict) -> str:
    """Returns what to try first."""
    if not verdict.advice:
        return ""
    return f"Try {verdict.advice[0].words}."


WORTH_SAYING = 1.05
"""The least gain by a piece of advice, as a ratio, that is said."""


def why_advised(advice: Advice) -> str:
    """Returns why a piece of advice should help, and by how much."""
    if not advice.most_times >= WORTH_SAYING:
        return advice.reason
    times = f"up to about {number(advice.most_times)}x as fast"
    if advice.in_short:  # the gain is of that part of the advice
        return f"{advice.reason} {capitalised(advice.in_short)} alone: {times}."
    return f"{advice.reason} {capitalised(times)}."


INPUT_BOUND_CLAUSES: tuple[Clause, ...] = (
    waiting,
    single_event,
    epoch_starts,
    held_up,
    slowest_loader,
    main_cause,
    left_early,
    cores_taken,
    outside_steps,
    asleep,
    before_model,
    free_data,
    other_programs,
    next_step,
)
ANSWERED: tuple[Clause, ...] = (waiting, launches, main_cause, free_data, most_gain, next_step)
"""Clauses that the four answers have as figures."""
CLAUSES: dict[str, tuple[Clause, ...]] = {
    "input-bound": INPUT_BOUND_CLAUSES,
    "moderately input-bound": INPUT_BOUND_CLAUSES,
    "not input-bound": (
        waiting,
        single_event,
        epoch_starts,
        held_up,
        most_gain,
        where_time_goes,
        cores_taken,
    ),
    "launch-bound": (launches, held_up, most_gain, cores_taken, next_step),
}
"""Kind of a verdict -> what is said of it, in this order."""
REPLAYED: tuple[Clause, ...] = (
    waiting,
    single_event,
    epoch_starts,
    what_a_replay_waits_for,
    cores_taken,
)
"""What is said of a run in which nothing is loaded."""


# Why there is no verdict.

NOT_MEASURABLE = "Not measurable here"
HEADLINES: dict[str, str] = {
    "loader_only": "Inconclusive",
    "no_steps": "Inconclusive",
    "too_few_steps": "Inconclusive",
    "steps_too_alike": "Inconclusive",
    "interval_too_wide": "Inconclusive",
    "partly_watched": "Partly watched",
    "forked_process": "Partly watched",
    "held_up": "Disturbed",
    "disturbed": "Disturbed",
}
"""Why there is no verdict -> its headline, where that is not `NOT_MEASURABLE`."""
STARVED = "Almost certainly starved"


def _headline_of_none(why: NoVerdict) -> str:
    """Returns what is known without a verdict, in a word or two."""
    late = why.reason == "rank_0_late" and why.frac >= thresholds.INPUT_BOUND_FRAC
    if late or (why.reason == "too_few_steps" and math.isfinite(why.idle_frac)):
        return STARVED
    return HEADLINES.get(why.reason, NOT_MEASURABLE)


def why_none_in_words(why: NoVerdict) -> str:
    """Returns why there is no verdict, where the reason is one of the facts alone
    (`no_verdict.not_measurable`)."""
    told = NO_VERDICT[why.reason](Verdict(kind="inconclusive", simulated=False), why)
    headline = _headline_of_none(why)
    return f"{headline}. {told}" if headline == STARVED else told


def _loader_only(verdict: Verdict, why: NoVerdict) -> str:
    return (
        "A loader-only run has no device work that could wait for data. Run the same settings with "
        "training."
    )


def _partly_watched(verdict: Verdict, why: NoVerdict) -> str:
    watched = f"Watching ended after {why.n_steps:,} steps ({why.what})."
    return f"{watched} The script may have trained on."


def _missing_ranks(verdict: Verdict, why: NoVerdict) -> str:
    trained = f"{count(why.n, 'rank')} of the job trained on other nodes and not in this run."
    return (
        f"{trained} Whether the job waits for their data is not known. Watch on each node, with one "
        "store (VITPROF_DB), or import their runs."
    )


def _lone_rank(verdict: Verdict, why: NoVerdict) -> str:
    return (
        f"{why.n:,} ranks train, and this one alone was recorded. Whether the job waits for "
        "another's data is not known. Watch all of them: vitprof watch -- torchrun ..."
    )


def _collective_in_loader(verdict: Verdict, why: NoVerdict) -> str:
    return (
        f"next(loader) contains a collective, {why.n:,} times. How long it waits there for other "
        "ranks, and how long for data, is not known."
    )


def _ranks_in_doubt(verdict: Verdict, why: NoVerdict) -> str:
    return (
        "The ranks wait for each other outside the backward pass, too, and for data not equally "
        "long. What data cost the job is not known."
    )


def _rank_0_early(verdict: Verdict, why: NoVerdict) -> str:
    own = (
        f"Rank 0 waits for data {percent(why.rank_0_frac)} of the time, but other ranks are later."
    )
    return f"{own} Data cost the job {percent(why.frac)}."


def _rank_0_late(verdict: Verdict, why: NoVerdict) -> str:
    job = f"The job waits for data {percent(why.frac)} of the time, for the last rank of each step."
    return f"{job} Rank 0, whose figures these are, waits {percent(why.rank_0_frac)}."


def _several_threads(verdict: Verdict, why: NoVerdict) -> str:
    return "Several threads of the script train, and vitprof watches one. Let one train alone."


def _forked_process(verdict: Verdict, why: NoVerdict) -> str:
    return (
        "A process that the script forked while it trained has trained, too. Its steps are not "
        f"among these {why.n_steps:,}. Let one process train alone."
    )


def _no_loader(verdict: Verdict, why: NoVerdict) -> str:
    return (
        "The script takes its batches from no loader that vitprof knows. The waits of "
        f"{why.n:,} of {why.n_steps:,} steps are not known. Watch what gives the batches: for batch "
        "in vitprof.watch(batches)."
    )


def _fetched_elsewhere(verdict: Verdict, why: NoVerdict) -> str:
    return (
        "The script fetches batches in another thread than the one that trains, so the waits "
        "measured are not the training's. Watch what the training loop iterates over: for batch in "
        "vitprof.watch(batches)."
    )


def _side_stream(verdict: Verdict, why: NoVerdict) -> str:
    return (
        "The GPU works in another stream while that of the optimizer is idle. For how long it is "
        "idle is not known. Put `with vitprof.step():` around the work of all streams, at whose end "
        "the optimizer's waits for them (wait_stream)."
    )


def _unclear_loaders(verdict: Verdict, why: NoVerdict) -> str:
    return (
        f"After {why.n:,} of {why.n_steps:,} steps the script iterated over another loader with "
        "gradients on. Whether to train or to validate is not clear. Validate under "
        "torch.no_grad(), or watch what gives all batches of a step: for batches in "
        "vitprof.watch(zip(loader, other))."
    )


def _few_steps(verdict: Verdict, why: NoVerdict) -> str:
    told = []
    if math.isfinite(why.idle_frac):
        told.append(f"{idled(verdict)} for data {percent(why.idle_frac)} of the time.")
    if why.updates_on_one_batch:
        steps = f"The optimizer stepped {why.updates_on_one_batch:,} times on one batch"
        told.append(f"{steps}, which is loaded once.")
    if not why.n_steps:
        told.append(f"No step was recorded: {why.needed} steady ones are needed.")
        return " ".join(told)
    recorded = "1 step was recorded" if why.n_steps == 1 else f"{why.n_steps} steps were recorded"
    n_not_steady = why.n_steps - why.n_steady
    if n_not_steady:
        which = "all" if n_not_steady == why.n_steps > 1 else str(n_not_steady)
        recorded += f", {which} of them in the warm-up or as an epoch begins"
    told.append(f"{recorded}: {why.needed} steady ones are needed.")
    if why.train_for:
        told.append(f"Train for at least {why.train_for} steps.")
    return " ".join(told)


def _untimed_device(verdict: Verdict, why: NoVerdict) -> str:
    waits = f"The loop waits for data {percent(why.frac)} of the time."
    unknown = f"Whether the device idles meanwhile is not known: vitprof cannot time {why.what}."
    return f"{waits} {unknown}"


def _no_device_times(verdict: Verdict, why: NoVerdict) -> str:
    return "The device's times are not known for enough steps."


def _steps_too_alike(verdict: Verdict, why: NoVerdict) -> str:
    return f"Of its {why.n_steady:,} steps {intervals.TOO_ALIKE}. Train for longer."


def _held_up(verdict: Verdict, why: NoVerdict) -> str:
    return (
        f"Python was kept from launching the model's work {percent(why.frac)} of the time. The loader "
        "did so, or other programs, which keep the CPU busy. End these, and run again."
    )


def _interval_too_wide(verdict: Verdict, why: NoVerdict) -> str:
    low = percent(verdict.idle_frac_low)
    high = percent(verdict.idle_frac_high)
    spread = f"Over {why.n_steady:,} steps that may be anything from {low} to {high}."
    longer = "Train for longer, or on a quieter machine."
    told = (_waited(verdict), single_event(verdict), spread, longer)
    return " ".join(said for said in told if said)


def _waited(verdict: Verdict) -> str:
    """Returns for which share of the time the device waited for data, without its interval."""
    return f"{idled(verdict)} for {_data(verdict)} {percent(verdict.idle_frac)} of the time."


def _left_early(verdict: Verdict, why: NoVerdict) -> str:
    return f"{_waited(verdict)} {left_early(verdict)}"


def _prepared_outside(verdict: Verdict, why: NoVerdict) -> str:
    return f"{_waited(verdict)} {before_model(verdict)}"


def _read_in_step(verdict: Verdict, why: NoVerdict) -> str:
    return f"{_waited(verdict)} {read_by_the_loop(why.frac, why.what)}"


def read_by_the_loop(frac: float, how_much: str) -> str:
    """Returns that the training loop reads data itself, and what to do."""
    return (
        f"After its batch had come the loop itself read data in {percent(frac)} of the steps, "
        f"{how_much} each. How long that took is not known. Read them in the dataset."
    )


def _disturbed(verdict: Verdict, why: NoVerdict) -> str:
    without = math.nan
    if verdict.other_programs is not None:
        without = verdict.other_programs.idle_frac_without
    perhaps = f"Without other programs, which keep the CPU busy, perhaps only {percent(without)}."
    return f"{_waited(verdict)} {perhaps} End them, and run again."


NO_VERDICT: dict[str, Callable[[Verdict, NoVerdict], str]] = {
    "loader_only": _loader_only,
    "partly_watched": _partly_watched,
    "missing_ranks": _missing_ranks,
    "lone_rank": _lone_rank,
    "collective_in_loader": _collective_in_loader,
    "ranks_in_doubt": _ranks_in_doubt,
    "rank_0_early": _rank_0_early,
    "rank_0_late": _rank_0_late,
    "several_threads": _several_threads,
    "forked_process": _forked_process,
    "no_loader": _no_loader,
    "fetched_elsewhere": _fetched_elsewhere,
    "side_stream": _side_stream,
    "unclear_loaders": _unclear_loaders,
    "no_steps": _few_steps,
    "too_few_steps": _few_steps,
    "untimed_device": _untimed_device,
    "no_device_times": _no_device_times,
    "steps_too_alike": _steps_too_alike,
    "held_up": _held_up,
    "interval_too_wide": _interval_too_wide,
    "prepared_outside": _prepared_outside,
    "left_early": _left_early,
    "read_in_step": _read_in_step,
    "disturbed": _disturbed,
}
"""Why there is no verdict -> what is said of it."""
