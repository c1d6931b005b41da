r"""FedCT: federated co-training by hard labels of public examples.

A. Abourayya, J. Kleesiek, K. Rao, E. Ayday, B. Rao, G. I. Webb, M. Kamp. "Little is Enough: Boosting Privacy
by Sharing Only Hard Labels in Federated Semi-Supervised Learning". AAAI 2025 (arXiv 2310.05696), Algorithm 1.

Clients i have labeled examples D^i and learners A^i of any kind; all have unlabeled examples U. At client i,

    line 3    h^i <- A^i(D^i u P, h^i)          in each of b local steps; P is empty at first
    line 5    L^i <- h^i(U)
    line 6    sends L^i, receives L
    line 7    P <- (U, L)

and at the server, line 11, L <- consensus(L^1, ..., L^m). A round here is b of the paper's T, `steps`, ending
with a communication: T / b rounds in all. An estimator without steps is fitted anew once a round.

Only the cohort takes part; other clients keep their models and do not vote. In the paper all clients take
part in every round. An example on which the consensus abstains (`qualified_majority`) is not in P until
the clients agree. In a round without a consensus (no votes, or a masked sum of fewer than two clients) P
stays. Classification only: labels of all federations are classes, and no config runs regression. Its
consensus (the paper's Section 6) is a library function; the docstring of
`jaxfed.training.consensus.consensus.mean` shows rounds of regressors.

DP-FedCT (Section 4) is `release`: clients add noise to their labels
(`jaxfed.algorithms.fedct.label_noise`). Each communication costs eps if one private example changes at most
r labels (s = 2 r of the paper's bits). `sensitivity` selects the source of r:

    "rows"         r as given, 0 for all of U; this bound with 0 always holds
    "stability"    Proposition 2 with a given rate; its proof does not hold
                   (`jaxfed.privacy.label_sensitivity`)
    "estimated"    the paper's estimate from neighbors sampled in the first round
                   (`jaxfed.algorithms.fedct.label_changes`); it bounds nothing

Each has a metric of its own (`jaxfed.algorithms.fedct.label_privacy`): `epsilon`, `epsilon_if_stable`,
`epsilon_estimated`. The metric composes all releases of the client that took part most often; the paper
states the eps of one. No epsilon covers the exact statistics of clients' rows that scale inputs
(`jaxfed.config.data.row_statistics`). `condition` "paper" is the paper's condition on Theta, larger
than necessary by sqrt(C).

The authors' code differs from the paper. It gives ties to the smallest class (so do we). It reads released
bits as a vote for the first set class, which loses more than estimates of the votes from summed bits, as
here. It draws bits by probabilities that depend on the private labels, which gives no epsilon
(`jaxfed.privacy.xor_mechanism`). Up to 2024 its networks never learned from L with b > 1.

An upload is |U| labels of ceil(log2 C) bits a round, or bits or answers in their place; with `sums` under
masks the server sees their histogram alone. Comes back: |U| labels. On a network models stay at their
clients, and noise comes from each client's operating system.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from jaxfed.algorithms.fedct.client_turn import (
    ClientWork,
    Message,
    client_turn,
    fitted_answers,
    noisy_marks,
)
from jaxfed.algorithms.fedct.label_changes import estimated_rows
from jaxfed.algorithms.fedct.label_noise import released_marks
from jaxfed.algorithms.fedct.label_privacy import LabelPrivacy
from jaxfed.algorithms.fedct.server_turn import Election, Sent
from jaxfed.algorithms.fedct.voting import Voting
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics, Sides
from jaxfed.federation.attack_surface import Instruction, View
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.departures import Departure, check_departures
from jaxfed.federation.method import method
from jaxfed.learners.answers import Question
from jaxfed.learners.client_fit import (
    check_clients,
    count,
    first_turns,
    most_turns,
    with_turns,
)
from jaxfed.learners.evaluation import judged_by_clients
from jaxfed.learners.label_views import labels_shown, probabilities_shown
from jaxfed.learners.learner import Learner
from jaxfed.privacy import randomized_response as rr
from jaxfed.random_streams import Stream
from jaxfed.settings import Count
from jaxfed.training.consensus.client_sums import ClientSums, ConsensusSums
from jaxfed.training.consensus.consensus import ABSTAINED, consensus_of
from jaxfed.training.consensus.dropout import Attendance


class FedCTState(NamedTuple):
    """State before a round.

    Fields:
        learner: the models h^i of all clients.
        label: int32 [U], L; -1 where clients abstained, or have not voted yet.
        weight: float32 [U], 1 for the examples of P, else 0.
        turns: int32 [M], communications that each client took part in.
        rows: int32, labels that noise hides; 0 without noise, and before an estimate.
        round: int32, rounds done.
    """

    learner: Any
    label: np.ndarray
    weight: np.ndarray
    turns: np.ndarray
    rows: np.ndarray
    round: np.ndarray


def _check_together(given: SimpleNamespace) -> None:
    if given.release == "none":
        return
    wrong = ""
    consensus = consensus_of(given.consensus, given.num_classes)
    if consensus.answers != "labels":
        wrong = "has clients share probabilities"
    elif consensus.from_tally is None:
        wrong = "needs every client's labels, and noise leaves estimates of their sum"
    if wrong:
        raise UsageError(
            f"noise is on labels, and consensus={given.consensus!r} {wrong}",
            key="release",
            value=given.release,
            allowed="use 'none', or consensus='majority'",
        )


@method(
    title="FedCT",
    cites="Abourayya et al., AAAI 2025",
    leaves="its labels of the public examples",
    takes=("learner", "public", "num_classes"),
    fields={"voting": Voting, "privacy": LabelPrivacy},
    together=_check_together,
)
def fedct(
    *,
    learner: Learner,
    public: np.ndarray,
    num_classes: int,
    steps: Count = 50,
    voting: Voting,
    privacy: LabelPrivacy,
) -> FederatedAlgorithm:
    """FedCT, and DP-FedCT.

    Args:
        learner: A, of all clients.
        public: U, [U, ...].
        num_classes: C.
        steps: b, local steps of a round.
        voting: the consensus; its fields are keywords (`jaxfed.algorithms.fedct.voting.Voting`).
        privacy: noise on labels; its fields are keywords
            (`jaxfed.algorithms.fedct.label_privacy.LabelPrivacy`).

    A round's metrics: `consensus_change`, share of U whose label changed; `agreement`, mean share of the
    consensus label among the votes as the server sees them; `abstained`, share of U without a label;
    `voters`, number of clients in the consensus, and with `presence` the number that `left`;
    `failed_clients`, `clients` that were fitted, and the learners' own metrics; under noise `epsilon`,
    `epsilon_if_stable` or `epsilon_estimated`, the last two with `sensitivity_rows`, r.

    Raises:
        UsageError: a value that is not allowed, or values that do not go together; in `init`, no public
            examples, new points at clients, labels at the server, clients that leave and are not there.
    """
    consensus = voting.rule(num_classes)
    question: Question = "predict" if consensus.answers == "labels" else "predict_proba"
    if getattr(learner, question) is None:
        raise UsageError(
            "needs probabilities, and this learner gives labels alone",
            key="consensus",
            value=voting.consensus,
            allowed="use a consensus on labels, such as 'majority'",
        )
    work = ClientWork(learner, question, public, num_classes, steps, privacy)
    parts = _FedCT(
        work,
        Election(consensus, num_classes, privacy),
        voting.sums,
        voting.mask_partners,
        voting.departures(),
    )
    judged = judged_by_clients(learner, num_classes, has_consensus=True)
    return FederatedAlgorithm(
        parts.init,
        parts.round,
        views=parts.views,
        instructions=parts.instructions,
        sides=parts.sides,
        **judged._asdict(),
    )


@dataclass(frozen=True, eq=False)
class _FedCT:
    """The parts of a round.

    Attributes:
        work: the clients' settings.
        election: the server's.
        sums: how answers are added.
        mask_partners: of each client, under masks; 0: all.
        departures: clients that leave.
    """

    work: ClientWork
    election: Election
    sums: ConsensusSums
    mask_partners: int
    departures: list[Departure]

    def init(self, key: jax.Array, federation: Federation) -> FedCTState:
        """Return the state before the first round: no labels of U yet."""
        first = self.first(federation)
        return first._replace(learner=self.work.learner.init(key, federation))

    def first(self, federation: Federation) -> FedCTState:
        """Return the state before the first round without the clients' models."""
        num_public = len(self.work.public)
        check_clients(federation, self.work.num_classes, self.work.public)
        if self.work.privacy.has_noise and self.work.privacy.rows > num_public:
            logging.warning(
                "fedct.rows=%d: of %d public labels no more can change",
                *(self.work.privacy.rows, num_public),
            )
        check_departures(self.departures, federation.num_clients, "fedct.presence")
        return FedCTState(
            learner=(),
            label=np.full(num_public, ABSTAINED, np.int32),
            weight=np.zeros(num_public, np.float32),
            turns=first_turns(federation),
            rows=count(self.work.privacy.known_rows(num_public)),
            round=count(0),
        )

    def round(
        self, state: FedCTState, cohort: Cohort, key: jax.Array
    ) -> tuple[FedCTState, Metrics]:
        """Local training and labels at the clients, then a vote at the server."""
        if self.mask_partners:
            from jaxfed.secure.session.neighborhoods import check_partners

            number = int(np.sum(cohort.client_id >= 0))
            check_partners(number, self.mask_partners, owner="fedct")
        fit_key, noise_key, _ = jax.random.split(key, 3)
        message = Message(state.label, state.weight, int(state.rows))
        turn = client_turn(self.work, state.learner, cohort, message, fit_key, noise_key)
        if self.work.privacy.has_noise and not message.rows:
            rows = self.estimated_rows(state, cohort, turn.voters, key)
            message = message._replace(rows=rows)
            marks = noisy_marks(self.work, turn.answers, turn.voters, rows, noise_key)
            turn = turn._replace(marks=marks)
        sums = self.summation(turn.voters, key)
        sent = Sent(turn.answers, turn.voters, turn.marks)
        vote = self.election.vote(message, sent, sums, int(state.round) + 1)
        after = FedCTState(
            turn.fit.state,
            vote.label,
            vote.weight,
            with_turns(state.turns, vote.voters),
            count(message.rows),
            count(int(state.round) + 1),
        )
        metrics: Metrics = {**turn.fit.metrics, **vote.metrics}
        if self.work.privacy.has_noise:
            metrics |= self.work.privacy.metrics(most_turns(after.turns), message.rows)
        return after, {**metrics, "communication": sums.communication.metrics()}

    def sides(self) -> Sides:
        """Return both sides of a network: the server's state is the simulation's without models."""
        from jaxfed.algorithms.fedct.network.sides import co_training_sides  # only networks need it

        return co_training_sides(
            self.work,
            self.election,
            self.sums,
            self.mask_partners,
            self.departures,
            self.first,
        )

    def summation(self, voters: np.ndarray, key: jax.Array) -> ClientSums:
        """Return the addition of this round's answers, and the clients that leave."""
        attendance = None
        if self.departures:
            draw = jax.random.fold_in(key, Stream.DROPOUT)
            attendance = Attendance(voters, self.departures, draw)
        return ClientSums(self.sums, Communication(), attendance, self.mask_partners)

    def estimated_rows(
        self, state: FedCTState, cohort: Cohort, voters: np.ndarray, key: jax.Array
    ) -> int:
        """r, estimated in the first round if it is not known."""
        fit_key, *_ = jax.random.split(key, 3)
        message = Message(state.label, state.weight)
        return estimated_rows(
            lambda one: fitted_answers(self.work, state.learner, one, message, fit_key)[1][0],
            cohort,
            voters,
            self.work.public,
            self.work.num_classes,
            jax.random.fold_in(key, Stream.NEIGHBORING_DATA),
            num_neighbors=self.work.privacy.neighbors,
        )

    def views(self, before: Any, after: Any, cohort: Cohort, key: jax.Array) -> list[View]:
        """Return what the server sees: labels, with noise if it is added, or what clients share instead."""
        del before
        summed = self.sums != "plaintext"
        shown = self.work.learner, after.learner, cohort.client_id, self.work.num_classes
        if self.election.consensus.answers == "probabilities":
            return [probabilities_shown(*shown, summed=summed)]
        _, noise_key, _ = jax.random.split(key, 3)

        def noisy(labels: np.ndarray, client: int) -> np.ndarray:
            return released_marks(
                self.work.privacy,
                int(after.rows),
                labels,
                len(self.work.public),
                self.work.num_classes,
                rr.from_key(jax.random.fold_in(noise_key, client)),
            )

        released = noisy if self.work.privacy.has_noise else None
        return [labels_shown(*shown, summed=summed, released=released)]

    def instructions(
        self, before: Any, after: Any, cohort: Cohort, key: jax.Array
    ) -> list[Instruction]:
        """Return what the clients of a round were told: P."""
        del after, cohort, key
        return [Instruction(self.work.steps, True, before.label, before.weight)]
