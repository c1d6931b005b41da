"""The attack surface of each method: the messages of a round that its parties have.

    views = surface_of(factory, keywords, algorithm)
    views(played)                      # list of `View`, of one round

Methods that average parameters show each client's model and the mean (`_averaged`). The others are in
`SHOWN`, by the name of their factory; for a method in neither no attack is known. A function of the table
receives a method's ingredients and settings as attributes of one object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.algorithms.fedct.method import draws_of
from jaxfed.algorithms.fedct.round import CoTraining
from jaxfed.algorithms.xclp import late_points, without_late
from jaxfed.audit import extra_client
from jaxfed.audit.views import (
    ANYBODY,
    NOBODY,
    OF_ALL,
    View,
    labels_shown,
    parameter_views,
    probabilities_shown,
)
from jaxfed.federation.algorithm import FederatedAlgorithm, attribute_of
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import arranged
from jaxfed.federation.method import checked, plain
from jaxfed.federation.rounds import Played
from jaxfed.learners.client_fit import take_turn
from jaxfed.learners.learner import Learner
from jaxfed.training.aggregate import Aggregate
from jaxfed.training.round.parts import Parts
from jaxfed.training.round.round import one_round, trained
from jaxfed.training.round.runner import simulated
from jaxfed.training.server_state import ServerState
from jaxfed.xclp import (
    Parameters,
    Propagation,
    Result,
    cross_client_label_propagation,
    drawn_seed,
    one_hot_labels,
)
from jaxfed.xclp.one_shot.cosine_propagation import label_over_cosines, matrix_over_cosines
from jaxfed.xclp.one_shot.transduction import client_arrays

Views = Callable[[Played], list[View]]
_THE_ONE = np.zeros(1, np.int32)  # the only client of a learner at the server


def surface_of(
    factory: Callable[..., FederatedAlgorithm],
    keywords: Mapping[str, Any],
    algorithm: FederatedAlgorithm,
) -> Views | None:
    """Return the views of a round's messages; None: no attack on the method is known.

    The views are [] before the method has sent anything.

    Args:
        factory: of the method.
        keywords: ingredients and settings that it was called with.
        algorithm: what it returned.
    """
    name = plain(factory).__name__
    if name in SHOWN:
        settings, objects = checked(factory, keywords)
        args = SimpleNamespace(**settings, **objects)
        if "network" in settings:
            args.network = cache(args.network)  # one learner, whose programs are compiled once
        return partial(SHOWN[name], args)
    parts: Parts | None = attribute_of(algorithm.round, "parts")
    return None if parts is None or name in _UNKNOWN else _averaged(parts)


def _kept(model: nnx.State, deltas: nnx.State, weights: jax.Array, state: Any) -> tuple[Any, Any]:
    return model, (model, deltas)


# A server that takes no step. Its optimizer state after a round holds the model that clients received, and
# their deltas [K, ...].
_RECORDING = Aggregate(lambda model, key: (), _kept)


def _averaged(parts: Parts) -> Views:
    """Views of methods that average parameters: each client's model, and the mean.

        w_k = w + delta_k      as client k sends it in the round,         w' = the server's model after it

    The round runs once more and records the deltas instead of taking the server's step. The same state,
    cohort and key give the same updates, bit for bit. Other uploads that the server classifies by belong to
    the client's model (`Classifier.of_client`). Under masks there is no message with a client's model.
    """
    view, classifier = parameter_views(parts.classifier), parts.classifier

    def mean_of(after: ServerState) -> View:
        return view("the mean", [-1], [classifier.needed(after)])._replace(adversary=ANYBODY)

    if parts.training.server.sums != "plaintext":  # no message has a client's model
        return lambda played: [mean_of(played.after)]
    recording = replace(parts, aggregate=_RECORDING)
    stages = cache(partial(simulated, recording, trained))

    def views(played: Played) -> list[View]:
        before, after, cohort, key = played.before, played.after, played.cohort, played.key
        received, deltas = one_round(recording, stages(), before, cohort, key)[0].optimizer
        ids = arranged(cohort, parts.training.execution.clients_multiple).client_id
        clients = {
            client: row for row, client in enumerate(np.asarray(ids).tolist()) if client >= 0
        }
        sent = [
            classifier.of_client(
                after,
                jax.tree.map(lambda w, change, row=row: w + change[row], received, deltas),
                client,
            )
            for client, row in clients.items()
        ]
        return [view("a client's model", list(clients), sent), mean_of(after)]

    return views


def _local_learning(args: Any, played: Played) -> list[View]:
    """Clients' models, which no message contains: a baseline."""
    shown = played.after.learner, played.cohort.client_id, args.num_classes
    return [probabilities_shown(args.learner, *shown, message="own model", adversary=NOBODY)]


def _centralized(args: Any, played: Played) -> list[View]:
    """The one model."""
    return [_alone(args.server_learner, played.after.learner, args.num_classes, "the model")]


def _alone(learner: Learner, state: Any, num_classes: int, message: str) -> View:
    view = probabilities_shown(
        learner, state, _THE_ONE, num_classes, message=message, adversary=ANYBODY
    )
    return view._replace(client=OF_ALL)


def _distillation(args: Any, played: Played) -> list[View]:
    """Probabilities of public examples, or their sum."""
    learner = args.network()
    shown = played.after.learner, played.cohort.client_id, args.num_classes
    return [probabilities_shown(learner, *shown, summed=args.sums != "plaintext")]


def _dsfl(args: Any, played: Played) -> list[View]:
    """Probabilities of public examples, or their sum."""
    learner = args.network(public_loss="soft_cross_entropy")
    # Recomputed: the networks that answered have been distilled since.
    update_key = jax.random.split(played.key, 3)[0]
    cohort = arranged(played.cohort)
    updated = take_turn(learner, played.before.learner, cohort, None, update_key, args.steps)
    shown = updated.state, updated.client_id, args.num_classes
    return [probabilities_shown(learner, *shown, summed=args.sums != "plaintext")]


def _fedmd(args: Any, played: Played) -> list[View]:
    """Scores of public examples, or their sum: those of the next round's communication."""
    learner = args.network()
    shown = played.after.learner, played.cohort.client_id, args.num_classes
    summed = args.sums != "plaintext"
    return [
        probabilities_shown(learner, *shown, message="scores", question="scores", summed=summed)
    ]


def _fedct(args: Any, played: Played) -> list[View]:
    """Labels of public examples, with noise if it is added, or their sum."""
    sizes = args.num_classes, args.steps
    settings = CoTraining(args.learner, args.public, *sizes, args.voting, args.privacy)
    rows, draw_of = int(played.after.rows), draws_of(played.key)
    return [
        labels_shown(
            *(args.learner, played.after.learner, played.cohort.client_id, args.num_classes),
            summed=args.voting.sums != "plaintext",
            released=lambda labels, client: settings.marks(labels, client, rows, draw_of),
        )
    ]


def _pate(args: Any, played: Played) -> list[View]:
    """Votes, their noisy counts, and the student; nothing before the vote."""
    if int(played.after.round) < args.teacher_rounds:
        return []
    _, noise_key, _ = jax.random.split(played.key, 3)
    shown = played.after.teachers, played.cohort.client_id, args.num_classes
    votes = labels_shown(args.learner, *shown, message="votes")
    counts = labels_shown(args.learner, *shown, message="counts", summed=True)
    num_teachers = max(len(votes.client), 1)

    def noisy(x: np.ndarray) -> np.ndarray:
        share = counts.answers(x)
        if not args.gamma:
            return share
        noise = np.asarray(jax.random.laplace(noise_key, share.shape))
        return (share + noise / (args.gamma * num_teachers)).astype(np.float32)

    student = _alone(args.server_learner, played.after.learner, args.num_classes, "student")
    return [votes, counts._replace(answers=noisy), student]


def _xclp(args: Any, played: Played) -> list[View]:
    """Rows of Z of an extra client and, if it colludes with the server, its distances of codes.

    Its unlabeled points are the examples under attack. It joins before the graph is made: points that come
    late are not in its graph either. The exchanges for a head are not attacked.
    """
    p, execution = replace(args.parameters, seed=drawn_seed(played.key)), args.execution
    p = replace(p, head="none", select=[entry for entry in p.select if entry != "head"])
    ids = np.asarray(played.cohort.client_id).tolist()
    vectors, labels = client_arrays(played.cohort)
    fraction, key = args.late_fraction, played.key
    late = [late_points(y, fraction, j, key) for j, y in zip(ids, labels, strict=True)]
    vectors, labels = without_late(vectors, labels, late)

    def with_one_more(points: np.ndarray) -> Result:
        return cross_client_label_propagation(
            [*vectors, points],
            [*labels, np.full(len(points), UNLABELED, np.int32)],
            p,
            execution,
            client_ids=[*ids, max(ids, default=-1) + 1],
        )

    @cache
    def chosen() -> Parameters:
        choice = with_one_more(vectors[0][:0]).choice if p.asks_labels else None
        return choice.p if choice else p

    return [
        *extra_client.extra_client_views(
            lambda points: with_one_more(points).predictions[-1].scores,
            lambda points, y, rows: extra_client.simulated_scores(
                points, y, rows, chosen(), execution
            ),
            [v[y < 0] for v, y in zip(vectors, labels, strict=True)],
        ),
        extra_client.coalition_view(
            lambda points: extra_client.simulated_codes([*vectors, points], chosen(), execution)
        ),
    ]


def _pooled_lp(args: Any, played: Played) -> list[View]:
    """Rows of Z of an extra client, whose unlabeled points are the examples under attack."""
    p, (vectors, labels) = args.p, client_arrays(played.cohort)
    sizes = list(map(len, vectors))

    def simulate(points: Sequence[np.ndarray], labelings: np.ndarray, rows: slice) -> np.ndarray:
        graph = matrix_over_cosines(points, settings()).graph
        return extra_client.scores_of_labelings(graph, labelings, rows, settings())

    @cache
    def settings() -> Propagation:
        if not p.asks_labels:
            return p
        y = one_hot_labels(np.concatenate(labels), p.num_classes)
        points, owner = np.concatenate(vectors), np.repeat(np.arange(len(sizes)), sizes)
        *_, choice = label_over_cosines(jnp.asarray(points), y, owner, p, args.execution)
        return choice.p if choice else p

    def label(points: np.ndarray) -> np.ndarray:
        positions = slice(sum(sizes), sum(sizes) + len(points))
        return simulate([*vectors, points], np.concatenate(labels)[None], positions)[0]

    unlabeled = [v[y < 0] for v, y in zip(vectors, labels, strict=True)]
    return extra_client.extra_client_views(label, simulate, unlabeled)


SHOWN: dict[str, Callable[[Any, Played], list[View]]] = {
    "local_learning": _local_learning,
    "centralized": _centralized,
    "distributed_distillation": _distillation,
    "dsfl": _dsfl,
    "fedmd": _fedmd,
    "fedct": _fedct,
    "pate": _pate,
    "xclp": _xclp,
    "pooled_lp": _pooled_lp,
}
"""Name of a factory -> its views, a function of what it was given and of a round."""

# Their clients send no whole model, or begin with models of earlier rounds.
_UNKNOWN = ("fedper", "fedrep", "fedproto", "fedtgp", "fedbuff")
