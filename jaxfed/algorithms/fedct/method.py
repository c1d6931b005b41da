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
stays. Classification only: labels of all federations are classes (for regression, named in the
paper's Section 6, the consensus would be the mean of the clients' numbers).

DP-FedCT (Section 4) is `release`: clients add noise to their labels. Each communication costs eps if one
private example changes at most r labels (s = 2 r of the paper's bits). The sources of r, with a metric each,
are in `jaxfed.algorithms.fedct.settings`; "estimated" samples neighboring data sets in the first round. The
metric composes all releases of the client that took part most often; the paper states the eps of one. No
epsilon covers the exact statistics of clients' rows that scale inputs (`jaxfed.config.data.simulation`).
`condition` "paper" is the paper's condition on Theta, larger than necessary by sqrt(C).

The authors' code differs from the paper. It gives ties to the smallest class (so do we). It reads released
bits as a vote for the first set class, which loses more than estimates of the votes from summed bits, as
here. It draws bits by probabilities that depend on the private labels, which gives no epsilon
(`jaxfed.privacy.xor_mechanism`). Up to 2024 its networks never learned from L with b > 1.

An upload is |U| labels of ceil(log2 C) bits a round, or bits in place of labels; with `sums` under
masks the server sees their histogram alone. The download is |U| labels. On a network models stay at their
clients, and noise comes from each client's operating system.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
from absl import logging

from jaxfed.algorithms.fedct.round import (
    CoTraining,
    DrawOf,
    FedCTState,
    Turn,
    client_turn,
    server_round,
)
from jaxfed.algorithms.fedct.settings import LabelPrivacy, Voting
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics, OnNetwork
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.method import method, with_attributes
from jaxfed.learners.client_fit import check_clients, count, first_turns
from jaxfed.learners.evaluation import judged_by_clients
from jaxfed.learners.learner import Learner, PublicTargets
from jaxfed.privacy import randomized_response as rr
from jaxfed.random_streams import Stream
from jaxfed.secure.session.channel import check_departures
from jaxfed.settings import Count
from jaxfed.training.consensus import ABSTAINED, Attendance

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


@method(
    title="FedCT",
    cites="Abourayya et al., AAAI 2025",
    leaves="its labels of the public examples",
    on_network=True,
    fields={"voting": Voting, "privacy": LabelPrivacy},
    takes=("learner", "public", "num_classes"),
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
        voting: the consensus; its fields are keywords (`jaxfed.algorithms.fedct.settings`).
        privacy: noise on labels; its fields are keywords (see there).

    A round's metrics: `consensus_change`, share of U whose label changed; `agreement`, mean share of the
    consensus label among the votes as the server sees them; `abstained`, share of U without a label;
    `voters`, number of clients in the consensus, and with `presence` the number that `left`;
    `failed_clients`, `clients` that were fitted, and the learners' own metrics; under noise `epsilon`,
    `epsilon_if_stable` or `epsilon_estimated`, the last two with `sensitivity_rows`, r.

    Raises:
        UsageError: a value that is not allowed, or values that do not go together; in `init`, no public
            examples, new points at clients, labels at the server, clients in `presence` that do not exist.
    """
    settings = CoTraining(learner, public, num_classes, steps, voting, privacy)
    parts = _Simulated(settings)
    round_ = with_attributes(parts.round, on_network=parts.on_network)
    judged = judged_by_clients(learner, num_classes, has_consensus=True)
    return FederatedAlgorithm(parts.init, round_, *judged)


def draws_of(key: jax.Array) -> DrawOf:
    """Sources of clients' noise in a round with this key."""
    _, noise_key, _ = jax.random.split(key, 3)
    return lambda client: rr.from_key(jax.random.fold_in(noise_key, client))


@dataclass(frozen=True, eq=False)
class _Simulated:
    """The clients of a simulation (`jaxfed.algorithms.fedct.round.Clients`), and the method's functions."""

    settings: CoTraining

    def init(self, key: jax.Array, federation: Federation) -> FedCTState:
        first = self.first(federation)
        return first._replace(learner=self.settings.learner.init(key, federation))

    def first(self, federation: Federation) -> FedCTState:
        """Return the state before the first round without the clients' models."""
        public, privacy = self.settings.public, self.settings.privacy
        check_clients(federation, self.settings.num_classes, public)
        if privacy.has_noise and privacy.rows > len(public):
            logging.warning(
                "fedct.rows=%d: of %d public labels no more can change",
                *(privacy.rows, len(public)),
            )
        departures = self.settings.voting.departures()
        check_departures(departures, federation.num_clients, "fedct.presence")
        return FedCTState(
            learner=(),
            label=np.full(len(public), ABSTAINED, np.int32),
            weight=np.zeros(len(public), np.float32),
            turns=first_turns(federation),
            rows=count(privacy.known_rows(len(public))),
            round=count(0),
        )

    def round(
        self, state: FedCTState, cohort: Cohort, key: jax.Array
    ) -> tuple[FedCTState, Metrics]:
        return server_round(self.settings, self, state, cohort, key)

    def turn(self, state: FedCTState, cohort: Cohort, key: jax.Array) -> Turn:
        """Run the turns of all clients of the cohort at once; a client's number selects its noise."""
        fit_key, *_ = jax.random.split(key, 3)
        return client_turn(
            self.settings,
            state.learner,
            cohort,
            PublicTargets(self.settings.public, state.label, state.weight),
            int(state.rows),
            fit_key,
            draws_of(key),
            neighbor_key=jax.random.fold_in(key, Stream.NEIGHBORING_DATA),
        )

    def attendance(self, voters: np.ndarray) -> Attendance | None:
        departures = self.settings.voting.departures()
        return Attendance(voters, departures) if departures else None

    @contextmanager
    def session(
        self, ids: Sequence[int], partners: int, round_number: int, attendance: Attendance | None
    ) -> Iterator[Session]:
        from jaxfed.secure.session.parties import Session

        del round_number
        presence = None if attendance is None else attendance.presence()
        yield Session(len(ids), presence=presence, mask_partners=partners)

    def on_network(self) -> OnNetwork:
        from jaxfed.algorithms.fedct.network import on_network  # only networks need it

        return on_network(self.settings, self.first)
