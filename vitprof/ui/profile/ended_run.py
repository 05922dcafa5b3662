"""A run that has ended as its page needs it, with what is looked up for several of its parts."""

from functools import cached_property

from vitprof import store
from vitprof.analysis.verdict import answer as answers
from vitprof.analysis.verdict.answer import Answer
from vitprof.config.device_rate import rate_if_valid
from vitprof.config.own_script import is_own_script
from vitprof.experiments.answers import may_prove, tournament_of_workers
from vitprof.recording.verdict import Verdict
from vitprof.store.tournaments import StoredTournament
from vitprof.ui import findings, resources
from vitprof.ui.profile import proof
from vitprof.ui.tournament import state


class EndedRun:
    """A run that has ended, for one draw of its page.

    Each part of it is looked up when the page first needs it, and once: card, tabs and picture need
    the same proofs, and tournaments may go on, so these are not kept for the next draw.
    """

    def __init__(self, run: store.StoredRun) -> None:
        self.run = run

    @cached_property
    def verdict(self) -> Verdict:
        """Returns the verdict, with headroom that was measured since."""
        return findings.verdict_of(self.run)

    @cached_property
    def answer(self) -> Answer:
        """Returns the answer, with what proofs have shown since."""
        shown = findings.proofs_of(self.run, self.verdict, state.view, self.looked_at)
        rate = rate_if_valid()
        return answers.answer_of(self.verdict, shown, summary=self.run.summary, rate=rate)

    @cached_property
    def looked_at(self) -> list[StoredTournament]:
        """Returns the tournaments in which a proof may be, the newest first."""
        return may_prove(resources.store(), self.run)

    @cached_property
    def begun_proofs(self) -> proof.Proofs:
        """Returns the proofs of its advice that have begun, the newest first."""
        return proof.begun(self.run)

    @cached_property
    def compared_workers(self) -> StoredTournament | None:
        """Returns the tournament that has compared the numbers of workers which are offered for a
        watched script; None where that is still to be done."""
        if not is_own_script(self.run.config):
            return None
        return tournament_of_workers(self.run, self.looked_at)
