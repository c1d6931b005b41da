"""FedMD: networks digest the mean of all scores, then revisit their own labels.

D. Li, J. Wang. "FedMD: Heterogenous Federated Learning via Model Distillation". 2019 (arXiv 1910.03581),
Algorithm 1. Before its first round a client goes through transfer learning,

    `transfer_steps` on public examples with their labels, where all clients have these
    `private_steps`  on its own labels

and every round, for public examples d drawn anew by the server,

    communicate, aggregate    z(u) = (1 / K) sum_k f_k(u),    u in d;   f_k the scores before softmax
    digest                    `digest_steps` on the distance of f_k(u) to z(u)
    revisit                   `revisit_steps` on the client's own labels

A step is a mini-batch. The distance is the mean absolute one; the paper says "approach the
consensus". Transfer needs public labels of the clients' own classes: with another data set's
the paper has one network for both sets of classes, which is not built here.

A rate's schedule counts a client's fits, two a round and those of its transfer: `training.schedule_rounds`.

FedCT (arXiv 2310.05696) compares with FedMD in Appendix C.4. An upload is |d| C numbers in float32. The
download has as many, and the indices of d.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import jax
import numpy as np

from jaxfed.algorithms.local_learning import LocalState
from jaxfed.data.given_examples import labels_of
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort, arranged, without_labels
from jaxfed.federation.communication import Communication
from jaxfed.federation.method import method
from jaxfed.learners.client_fit import (
    ClientFit,
    PublicMean,
    check_answers,
    check_clients,
    count,
    first_turns,
    public_mean,
    take_turn,
    with_turns,
)
from jaxfed.learners.evaluation import judged_by_clients
from jaxfed.learners.learner import Learner, PublicTargets
from jaxfed.settings import Count, CountOrZero, Ge, Note
from jaxfed.training.consensus import ConsensusSums

DISTANCE = "score_l1"


@method(
    title="FedMD",
    cites="Li, Wang, arXiv 1910.03581",
    leaves="its scores of public examples, or their masked sum",
    takes=("network", "public", "public_labels", "num_classes"),
)
def fedmd(
    *,
    network: Callable[..., Learner],
    public: np.ndarray,
    public_labels: np.ndarray | None,
    num_classes: int,
    subset: Annotated[int, Ge(0), Note("0 is all public examples")] = 5000,
    transfer_steps: CountOrZero = 500,
    private_steps: CountOrZero = 500,
    digest_steps: Count = 50,
    revisit_steps: CountOrZero = 50,
    sums: ConsensusSums = "plaintext",
) -> FederatedAlgorithm:
    """FedMD.

    Args:
        network: keywords -> clients' networks; `functools.partial(jaxfed.learners.network, training=...)`.
        public: U, [U, ...].
        public_labels: int32 [U] of the clients' classes; None: nobody has them, and there is no such
            transfer.
        num_classes: C.
        subset: |d|, public examples drawn for a round; all if there are fewer.
        transfer_steps: steps on public labels, before a client's first round.
        private_steps: steps on own labels, after these.
        digest_steps: steps on the mean scores in each round.
        revisit_steps: steps on own labels in each round, after these.
        sums: how the server adds scores.

    Raises:
        UsageError: networks have no scores; `init` gets a federation without public examples, with public
            labels of other classes, with new points at clients, or with labels at the server.
    """
    parts = FedMD(
        *(network, public, public_labels, num_classes, subset),
        *(transfer_steps, private_steps, digest_steps, revisit_steps, sums),
    )
    check_answers(parts.learner, "scores")
    judged = judged_by_clients(parts.learner, num_classes)
    return FederatedAlgorithm(parts.init, parts.round, *judged)


@dataclass(frozen=True, eq=False)
class FedMD:
    """The parts of a round; attributes are the keywords of `fedmd`."""

    network: Callable[..., Learner]
    public: np.ndarray
    public_labels: np.ndarray | None
    num_classes: int
    subset: int
    transfer_steps: int
    private_steps: int
    digest_steps: int
    revisit_steps: int
    sums: ConsensusSums

    @cached_property
    def learner(self) -> Learner:
        """Networks that learn scores of public examples."""
        return self.network(public_loss=DISTANCE)

    @cached_property
    def by_label(self) -> Learner:
        """The same networks, which learn labels of public examples."""
        return self.network(public_loss="label")

    @property
    def no_labels(self) -> np.ndarray:
        """int32 [U] of -1: digestion is by scores alone."""
        return np.full(len(self.public), -1, np.int32)

    def init(self, key: jax.Array, federation: Federation) -> LocalState:
        """Return the state before the first round."""
        check_clients(federation, self.num_classes, self.public)
        y, known = self.public_labels, federation.y[federation.public]
        if y is not None:
            labels_of(y, "public_labels", len(self.public), self.num_classes)
        if y is not None and len(known) and not np.array_equal(known, y):
            raise UsageError(
                "the public examples' classes are not the clients'",
                key="public_labeled",
                value=True,
                allowed="use False, or public examples of the same classes",
            )
        return LocalState(self.learner.init(key, federation), first_turns(federation), count(0))

    def round(
        self, state: LocalState, cohort: Cohort, key: jax.Array
    ) -> tuple[LocalState, Metrics]:
        """Communicate, aggregate, digest, revisit."""
        _, _, digest_key, revisit_key = jax.random.split(key, 4)
        cohort = arranged(cohort)
        in_round = int(np.sum(np.asarray(cohort.client_id) >= 0))
        communication = Communication()
        consensus, cohort = self.communicated(state, cohort, key, communication)
        targets = PublicTargets(self.public, self.no_labels, consensus.weight, consensus.mean)
        cohort = cohort._replace(client_id=consensus.turn.client_id)
        digested = take_turn(
            *(self.learner, consensus.turn.state, without_labels(cohort), targets),
            *(digest_key, self.digest_steps),
        )
        left = _still(cohort, digested)
        revisited = take_turn(
            self.learner, digested.state, left, None, revisit_key, self.revisit_steps
        )
        metrics: Metrics = {
            **revisited.metrics,
            "voters": consensus.num_voters,
            "failed_clients": in_round - int(np.sum(revisited.client_id >= 0)),
            "communication": communication.metrics(),
        }
        if "train_loss" in digested.metrics:
            metrics["digest_loss"] = digested.metrics["train_loss"]
        turns = with_turns(state.turns, consensus.voters)
        return LocalState(revisited.state, turns, count(int(state.round) + 1)), metrics

    def communicated(
        self, state: LocalState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> tuple[PublicMean, Cohort]:
        """Transfer learning of new clients, then the steps "communicate" and "aggregate".

        The cohort that comes back is without the clients whose transfer failed.
        """
        first_key, draw_key, *_ = jax.random.split(key, 4)
        models, cohort = self.transferred(state, cohort, first_key)
        size = min(self.subset or len(self.public), len(self.public))
        present = ClientFit(models, np.asarray(cohort.client_id), np.zeros(0, np.int32), {})
        consensus = public_mean(
            *(present, self.learner, "scores", self.public, size, self.num_classes),
            *(self.sums, communication),
            key=draw_key,
        )
        return consensus, cohort

    def transferred(self, state: LocalState, cohort: Cohort, key: jax.Array) -> tuple[Any, Cohort]:
        """Models after the transfer of new clients, and the cohort without clients whose transfer failed."""
        public_key, private_key = jax.random.split(key)
        ids = np.asarray(cohort.client_id)
        is_new = (ids >= 0) & (state.turns[ids] == 0)
        new = cohort._replace(client_id=np.where(is_new, ids, -1).astype(np.int32))
        models = state.learner
        if not is_new.any():
            return models, cohort
        if self.public_labels is not None and self.transfer_steps:
            ones = np.ones(len(self.public), np.float32)
            turn = take_turn(
                *(self.by_label, models, without_labels(new)),
                *(
                    PublicTargets(self.public, self.public_labels, ones),
                    public_key,
                    self.transfer_steps,
                ),
            )
            models, cohort, new = turn.state, _still(cohort, turn), _still(new, turn)
        if self.private_steps:
            turn = take_turn(self.learner, models, new, None, private_key, self.private_steps)
            models, cohort = turn.state, _still(cohort, turn)
        return models, cohort


def _still(cohort: Cohort, turn: ClientFit) -> Cohort:
    """The cohort without the clients that sit out."""
    ids = np.asarray(cohort.client_id)
    return cohort._replace(client_id=np.where(np.isin(ids, turn.failed), -1, ids).astype(np.int32))
