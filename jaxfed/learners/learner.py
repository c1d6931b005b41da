"""The learner protocol: one interface to all clients' models, whatever their kind.

FedCT (arXiv 2310.05696, Algorithm 1) requires of a client's learner A only

    h_t <- A(D u P, h_{t-1})        D: the client's own labels,  P = (U, L): public examples, as all label
    L   <- h_t(U)

so networks, trees and rules may take part. A learner holds the models of all M clients, and trains those of a
cohort in one call: networks in one program, estimators of other libraries in processes.

    state = learner.init(key, federation)
    state, failed, metrics = learner.fit(state, cohort, targets, key, steps)
    labels = learner.predict(state, cohort.client_id, public_x)              # [K, |U|]

A state is a pytree of arrays, which a checkpoint holds. A learner can recompute everything else from a state
and the arguments of `init`. A client's model depends on its own examples, its targets and its own keys: the
other clients and their order change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort

State = Any  # a pytree of arrays, of all M clients
SPOILED = -2  # in place of a class: no valid answer, as the model's scores are nan or infinite


class PublicTargets(NamedTuple):
    """Public examples U with the targets that clients learn from; x is one array for all, never copied.

    U stays the same from round to round: an example that should not count has weight 0.

    Fields:
        x: [U, ...].
        label: int32 [U]; -1 where the consensus abstained, or no label is known yet.
        weight: float32 [U], 0 or more.
        soft: float32 [U, C], probabilities or scores, for learners that distill; None: none.
    """

    x: Array
    label: Array
    weight: Array
    soft: Array | None = None

    def counts(self, public_loss: str = "label") -> jax.Array:
        """bool [U]: examples to learn from, those with a target and a weight."""
        has_weight = jnp.asarray(self.weight) > 0
        return has_weight & (self.label >= 0) if public_loss == "label" else has_weight


class Fitted(NamedTuple):
    """Result of a fit.

    Fields:
        state: of all M clients; those that are not in the cohort, or failed, keep their old one.
        failed: client -> reason why its learner could not be fitted, in one line.
        metrics: name -> number: `clients`, the number of fitted clients, and means over these, such as
            `train_loss`.
    """

    state: State
    failed: dict[int, str]
    metrics: dict[str, Any]


Init = Callable[[jax.Array, Federation], State]  # key
Fit = Callable[[State, Cohort, PublicTargets | None, jax.Array, int], Fitted]  # ..., key, steps
Predict = Callable[[State, Array, Array], np.ndarray]  # state, clients int32 [K], examples [n, ...]


class Learner(NamedTuple):
    """A supervised learner of all clients: `init(key, federation)`, `fit`, `predict`. Keys are typed.

    Fields:
        init: key, federation -> the state of the M clients before the first round. It is also called, with
            the same clients, before a state is read from a checkpoint.
        fit: state, cohort, public targets, the round's key, steps -> the state after this number of local
            steps of each client of the cohort. A client trains on its rows with a label (`cohort.y` of 0 or
            more) and on the public targets. The learner defines a step: a mini-batch for a network; for an
            estimator without steps any number of steps is one fit from scratch. Rows without a client
            (id -1) train nothing.
        predict: state, clients, examples -> classes int32 [K, n]. A client that has no model yet, since it
            had nothing to learn from, has -1, no vote, and an example without a valid answer `SPOILED`.
            Rows without a client (id -1) are arbitrary.
        predict_proba: the same of probabilities, float32 [K, n, C]; zeros where `predict` has no vote, nan
            where it is `SPOILED`. None: the learner gives labels alone.
        scores: the same of logits, of which the probabilities are the softmax (FedMD shares them); None:
            there are none.
        continues: True if a fit continues from the client's last model; False if it starts from scratch.
    """

    init: Init
    fit: Fit
    predict: Predict
    predict_proba: Predict | None = None
    scores: Predict | None = None
    continues: bool = True


def check_classes(name: str, number: int, federation: Federation) -> None:
    """Check that a learner, or a method, has as many classes as the clients.

    Raises:
        UsageError: it has another number.
    """
    if number != federation.num_classes:
        raise UsageError(
            f"{name} has {number} outputs and the clients have {federation.num_classes} classes; use "
            f"{federation.num_classes} outputs (num_classes=)"
        )
