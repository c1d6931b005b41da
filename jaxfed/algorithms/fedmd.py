"""FedMD: networks that digest the mean of each other's scores on public examples, then revisit their own.

D. Li, J. Wang. "FedMD: Heterogenous Federated Learning via Model Distillation". 2019 (arXiv 1910.03581),
Algorithm 1. Before its first round a client goes through transfer learning,

    `transfer_steps` on public examples with their labels, where all clients have these
    `private_steps`  on its own labels

and every round, for public examples d drawn anew by the server,

    communicate, aggregate    z(u) = (1 / K) sum_k f_k(u),    u in d;   f_k the scores before softmax
    digest                    `digest_steps` on the distance of f_k(u) to z(u)
    revisit                   `revisit_steps` on the client's own labels

A step is a mini-batch. The distance is the mean absolute one, or squared (`distance`); the paper says
"approach the consensus". Transfer needs public labels of the clients' own classes: with another data set's
the paper has one network for both sets of classes, which is not built here.

A rate's schedule counts a client's fits, two a round and those of its transfer: `training.schedule_rounds`.

FedCT (arXiv 2310.05696) compares with FedMD in Appendix C.4. Leaves a client: |d| C scores, float32, or
their masked sum; comes back: as many, and which examples they are of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort, arranged, without_labels
from jaxfed.federation.communication import Communication
from jaxfed.federation.exposure import Instruction, View
from jaxfed.learners.exposure import probabilities_shown
from jaxfed.learners.judgement import judged_by_clients
from jaxfed.learners.learner import Learner, Taught
from jaxfed.learners.turn import (
    Turn,
    asked,
    check_clients,
    count,
    first_turns,
    speaking,
    take_turn,
    with_turns,
)
from jaxfed.rules import at_least, keywords, one_of
from jaxfed.training.consensus.consensus import soft_mean
from jaxfed.training.consensus.opened_tally import Sums, opened_tally

Distance = Literal["score_l1", "score_mse"]
_FLOAT = 4


class FedMDState(NamedTuple):
    """State before a round.

    Fields:
        learner: the networks of all clients.
        turns: int32 [M], rounds that each client took part in.
        round: int32, rounds done.
    """

    learner: Any
    turns: np.ndarray
    round: np.ndarray


class _Spoken(NamedTuple):
    """Scores of a round's clients and their mean.

    Fields:
        turn: the models after the transfer, and the clients present.
        cohort: the round's clients without those whose transfer failed.
        voters: int32 [K], the clients in the sum.
        communication: bytes so far.
        mean: float32 [U, C], z; 0 outside of d.
        weight: float32 [U], 1 in d where there is a z.
    """

    turn: Turn
    cohort: Cohort
    voters: np.ndarray
    communication: Communication
    mean: np.ndarray
    weight: np.ndarray


@keywords(
    subset=at_least(0, ", 0 is all public examples"),
    transfer_steps=at_least(0),
    private_steps=at_least(0),
    digest_steps=at_least(1),
    revisit_steps=at_least(0),
    distance=one_of(get_args(Distance)),
    sums=one_of(get_args(Sums)),
)
def fedmd(
    *,
    network: Callable[..., Learner],
    public: np.ndarray,
    public_labels: np.ndarray | None,
    num_classes: int,
    subset: int = 5000,
    transfer_steps: int = 500,
    private_steps: int = 500,
    digest_steps: int = 50,
    revisit_steps: int = 50,
    distance: Distance = "score_l1",
    sums: Sums = "plaintext",
) -> FederatedAlgorithm:
    """FedMD.

    Args:
        network: keywords -> clients' networks; `functools.partial(jaxfed.learners.network, training=...)`.
        public: U, [U, ...].
        public_labels: int32 [U] of the clients' classes; None: nobody has them, and there is no such
            transfer.
        num_classes: C.
        subset: |d|; of fewer public examples all.
        transfer_steps: on public labels, before a client's first round.
        private_steps: on own labels, after these.
        digest_steps: a round, on scores.
        revisit_steps: a round, on own labels.
        distance: of scores.
        sums: how the server adds scores.

    Raises:
        UsageError: a value that is not allowed, networks without scores; in `init`, no public examples or
            labels of other classes, new points at clients, labels at the server.
    """
    learner = network(public_loss=distance)
    by_label = network(public_loss="label")
    if learner.scores is None:
        raise UsageError("network: has no scores; allowed are learners that have some")
    size = min(subset or len(public), len(public))
    no_labels = np.full(len(public), -1, np.int32)

    def init(key: jax.Array, federation: Federation) -> FedMDState:
        check_clients(federation, public)
        of_others = federation.y[federation.public] != public_labels
        if public_labels is not None and np.any(of_others):
            raise UsageError(
                "public_labeled=True: the public examples' classes are not the clients'; allowed is False, "
                "or public examples of the same classes"
            )
        return FedMDState(learner.init(key, federation), first_turns(federation), count(0))

    def spoken(state: FedMDState, cohort: Cohort, key: jax.Array) -> _Spoken:
        """Transfer learning of new clients, then the steps "communicate" and "aggregate"."""
        first_key, draw_key, *_ = jax.random.split(key, 4)
        communication = Communication()
        models, cohort = transferred(state, cohort, first_key)
        drawn = np.sort(np.asarray(jax.random.permutation(draw_key, len(public)))[:size])
        present = Turn(models, np.asarray(cohort.client_id), np.zeros(0, np.int32), {})
        present, scores = asked(present, learner, "scores", public[drawn], num_classes, first_key)
        voters = speaking(present.client_id, scores)
        number = int(np.sum(voters >= 0))
        total = opened_tally(
            soft_mean(num_classes),
            scores,
            voters,
            communication,
            num_classes=num_classes,
            sums=sums,
        )
        mean = np.zeros((len(public), num_classes), np.float32)
        mean[drawn] = total / max(number, 1)
        # Clients without scores, or with a new network, digest too; no client digests a sum not opened.
        is_known = bool(total.any())
        listening = int(np.sum(present.client_id >= 0)) if is_known else 0
        communication.down("mean", listening * _FLOAT * (total.size + size))

        weight = np.zeros(len(public), np.float32)
        weight[drawn] = is_known
        return _Spoken(present, cohort, voters, communication, mean, weight)

    def round(state: FedMDState, cohort: Cohort, key: jax.Array) -> tuple[FedMDState, Metrics]:
        _, _, digest_key, revisit_key = jax.random.split(key, 4)
        cohort = arranged(cohort)
        in_round = int(np.sum(np.asarray(cohort.client_id) >= 0))
        present, cohort, voters, communication, mean, weight = spoken(state, cohort, key)

        # Digest, revisit
        taught = Taught(public, no_labels, weight, mean)
        cohort = cohort._replace(client_id=present.client_id)
        digested = take_turn(
            learner, present.state, without_labels(cohort), taught, digest_key, digest_steps
        )
        left = _still(cohort, digested)
        revisited = take_turn(learner, digested.state, left, None, revisit_key, revisit_steps)
        turns = with_turns(state.turns, voters)
        failed = in_round - int(np.sum(revisited.client_id >= 0))
        metrics: Metrics = {
            **revisited.metrics,
            "voters": int(np.sum(voters >= 0)),
            "failed_clients": failed,
        }
        if "train_loss" in digested.metrics:
            metrics["digest_loss"] = digested.metrics["train_loss"]
        after = FedMDState(revisited.state, turns, count(int(state.round) + 1))
        return after, {**metrics, "communication": communication.metrics()}

    def transferred(state: FedMDState, cohort: Cohort, key: jax.Array) -> tuple[Any, Cohort]:
        """Models after the transfer of new clients, and the cohort without clients whose transfer failed."""
        public_key, private_key = jax.random.split(key)
        ids = np.asarray(cohort.client_id)
        is_new = (ids >= 0) & (state.turns[ids] == 0)
        new = cohort._replace(client_id=np.where(is_new, ids, -1).astype(np.int32))
        models = state.learner
        if not is_new.any():
            return models, cohort
        if public_labels is not None and transfer_steps:
            taught = Taught(public, public_labels, np.ones(len(public), np.float32))
            turn = take_turn(
                by_label, models, without_labels(new), taught, public_key, transfer_steps
            )
            models, cohort, new = turn.state, _still(cohort, turn), _still(new, turn)
        if private_steps:
            turn = take_turn(learner, models, new, None, private_key, private_steps)
            models, cohort = turn.state, _still(cohort, turn)
        return models, cohort

    def views(before: Any, after: Any, cohort: Cohort, key: jax.Array) -> list[View]:
        # Scores of the next round's communication come from the models at the end of this one.
        del before, key
        return [
            probabilities_shown(
                learner,
                after.learner,
                cohort.client_id,
                num_classes,
                message="scores",
                question="scores",
                summed=sums != "plaintext",
            )
        ]

    def instructions(before: Any, after: Any, cohort: Cohort, key: jax.Array) -> list[Instruction]:
        del after
        said = spoken(before, arranged(cohort), key)  # recomputed: no state has these scores
        own = (("public_loss", distance),)
        told = [
            Instruction(digest_steps, False, no_labels, said.weight, said.mean, own),
            Instruction(revisit_steps, network=own),
        ]
        if int(before.round):
            return told
        first = [Instruction(private_steps, network=own)]
        if public_labels is not None:
            ones = np.ones(len(public), np.float32)
            by = (("public_loss", "label"),)
            first = [Instruction(transfer_steps, False, public_labels, ones, network=by), *first]
        return [*first, *told]

    judged = judged_by_clients(learner, num_classes)
    return FederatedAlgorithm(
        init, round, views=views, instructions=instructions, **judged._asdict()
    )


def _still(cohort: Cohort, turn: Turn) -> Cohort:
    """The cohort without the clients that sit out."""
    ids = np.asarray(cohort.client_id)
    return cohort._replace(client_id=np.where(np.isin(ids, turn.failed), -1, ids).astype(np.int32))
