"""The attack surface of each method: which messages of a round its parties have.

    surface = surface_of(factory, keywords, algorithm)
    surface.views(played)              # list of `View`, of one round
    surface.instructions(played)       # list of `Instruction`; None: no public targets

Methods that average parameters show each client's model and the mean (`_averaged`). The others are in
`SHOWN`, by the name of their factory; a method that is in neither shows nothing that an attack is known for.
A function of the table receives a method's ingredients and settings as attributes of one object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from inspect import unwrap
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.algorithms.fedct.method import draws_of
from jaxfed.algorithms.fedct.round import CoTraining
from jaxfed.algorithms.fedmd import DISTANCE, FedMD
from jaxfed.algorithms.xclp import late_points, without_late
from jaxfed.audit import extra_client
from jaxfed.audit.views import (
    ANYBODY,
    NOBODY,
    OF_ALL,
    Instruction,
    View,
    labels_shown,
    parameter_views,
    probabilities_shown,
)
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import arranged, chosen
from jaxfed.federation.communication import Communication
from jaxfed.federation.method import checked, plain
from jaxfed.federation.rounds import Played
from jaxfed.learners.client_fit import take_turn
from jaxfed.learners.learner import Learner
from jaxfed.training.consensus.consensus import ABSTAINED
from jaxfed.training.round.parts import Parts
from jaxfed.training.round.round import one_round, trained
from jaxfed.training.round.runner import simulated
from jaxfed.training.round.training_cohort import places_of
from jaxfed.training.server.aggregate import Aggregate
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
Instructions = Callable[[Played], list[Instruction]]

STUDENT = "student"  # PATE's message that all parties have
_THE_ONE = np.zeros(1, np.int32)  # the only client of a learner at the server


class Surface(NamedTuple):
    """The messages of a method, from which an attacker infers membership.

    Fields:
        views: of a round's messages; [] before a method has sent anything; None: no attack is known.
        instructions: in order, the local steps of a client that has taken part since the first round; None:
            clients receive no targets that all of them have.
    """

    views: Views | None = None
    instructions: Instructions | None = None


def surface_of(
    factory: Callable[..., FederatedAlgorithm],
    keywords: Mapping[str, Any],
    algorithm: FederatedAlgorithm,
) -> Surface:
    """Return the attack surface of a method.

    Args:
        factory: of the method.
        keywords: ingredients and settings that it was called with.
        algorithm: what it returned.
    """
    name = plain(factory).__name__
    if name in SHOWN:
        given, objects = checked(factory, keywords)
        own = SimpleNamespace(**given, **objects)
        if "network" in given:
            own.network = cache(own.network)  # one learner, whose programs are compiled once
        views, instructions = SHOWN[name]
        return Surface(partial(views, own), instructions and partial(instructions, own))
    played = unwrap(algorithm.round)
    if getattr(played, "func", None) is one_round and name not in _UNKNOWN:
        return Surface(_averaged(played.args[0]))
    return Surface()


def _kept(model: nnx.State, deltas: nnx.State, weights: jax.Array, state: Any) -> tuple[Any, Any]:
    return model, (model, deltas)


# A server that takes no step. The optimizer's state after a round is the model that clients received, and
# their deltas [K, ...].
_RECORDING = Aggregate(lambda model, key: (), _kept)


def _averaged(parts: Parts) -> Views:
    """Views of methods that average parameters: each client's model, and the mean.

        w_k = w + delta_k      as client k sends it in the round,         w' = the server's model after it

    The round runs once more and records the deltas instead of taking the server's step. The same state,
    cohort and key give the same updates, bit for bit. Other uploads that the server classifies by belong to
    the client's model (`Classifier.of_client`).
    """
    view, classifier = parameter_views(parts.classifier), parts.classifier
    recording = replace(parts, aggregate=_RECORDING)
    stages = cache(partial(simulated, recording, trained))

    def views(played: Played) -> list[View]:
        before, after, cohort, key = played.before, played.after, played.cohort, played.key
        received, deltas = one_round(recording, stages(), before, cohort, key)[0].optimizer
        if parts.training.training_cohort_size:
            cohort = chosen(cohort, places_of(parts, before, cohort, key))
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
        mean = view("the mean", [-1], [classifier.needed(after)])
        return [view("a client's model", list(clients), sent), mean._replace(adversary=ANYBODY)]

    return views


def _local_learning(given: Any, played: Played) -> list[View]:
    """Clients' own models, which nobody has: a baseline."""
    shown = played.after.learner, played.cohort.client_id, given.num_classes
    return [probabilities_shown(given.learner, *shown, message="own model", adversary=NOBODY)]


def _centralized(given: Any, played: Played) -> list[View]:
    """The one model."""
    return [_alone(given.server_learner, played.after.learner, given.num_classes, "the model")]


def _alone(learner: Learner, state: Any, num_classes: int, message: str) -> View:
    view = probabilities_shown(
        learner, state, _THE_ONE, num_classes, message=message, adversary=ANYBODY
    )
    return view._replace(client=OF_ALL)


def _distillation(given: Any, played: Played) -> list[View]:
    """Probabilities of public examples, or their sum."""
    learner = given.network(**_drawn(given))
    shown = played.after.learner, played.cohort.client_id, given.num_classes
    return [probabilities_shown(learner, *shown, summed=given.sums != "plaintext")]


def _distillation_told(given: Any, played: Played) -> list[Instruction]:
    told = played.before.label, played.before.weight, played.before.soft
    return [Instruction(given.steps, True, *told, network=tuple(_drawn(given).items()))]


def _drawn(given: Any) -> dict[str, Any]:
    return {"public_loss": "squared_distance", "pseudo_weight": given.rho}


def _dsfl(given: Any, played: Played) -> list[View]:
    """Probabilities of public examples, or their sum."""
    learner = given.network(**dict(_SHARPENED))
    # Recomputed: the networks that answered have been distilled since.
    update_key = jax.random.split(played.key, 3)[0]
    cohort = arranged(played.cohort)
    updated = take_turn(learner, played.before.learner, cohort, None, update_key, given.steps)
    shown = updated.state, updated.client_id, given.num_classes
    return [probabilities_shown(learner, *shown, summed=given.sums != "plaintext")]


def _dsfl_told(given: Any, played: Played) -> list[Instruction]:
    """Steps before a client answers: distill the last round's targets, then update on its own labels."""
    nothing = np.full(len(given.public), ABSTAINED, np.int32)
    told = nothing, played.before.weight, played.before.soft
    return [
        Instruction(given.distill_steps, False, *told, network=_SHARPENED),
        Instruction(given.steps, network=_SHARPENED),
    ]


_SHARPENED = (("public_loss", "soft_cross_entropy"),)


def _fedmd(given: Any, played: Played) -> list[View]:
    """Scores of public examples, or their sum: those of the next round's communication."""
    learner = given.network(public_loss=DISTANCE)
    shown = played.after.learner, played.cohort.client_id, given.num_classes
    summed = given.sums != "plaintext"
    return [
        probabilities_shown(learner, *shown, message="scores", question="scores", summed=summed)
    ]


def _fedmd_told(given: Any, played: Played) -> list[Instruction]:
    """A transfer at first, then in each round the steps digest and revisit."""
    parts = FedMD(**vars(given))
    # Recomputed: no state has these scores.
    told, _ = parts.communicated(
        played.before, arranged(played.cohort), played.key, Communication()
    )
    own = (("public_loss", DISTANCE),)
    every_round = [
        Instruction(given.digest_steps, False, parts.no_labels, told.weight, told.mean, own),
        Instruction(given.revisit_steps, network=own),
    ]
    if int(played.before.round):
        return every_round
    first = [Instruction(given.private_steps, network=own)]
    if given.public_labels is not None:
        ones = np.ones(len(given.public), np.float32)
        by = (("public_loss", "label"),)
        taught = given.transfer_steps, False, given.public_labels, ones
        first = [Instruction(*taught, network=by), *first]
    return [*first, *every_round]


def _fedct(given: Any, played: Played) -> list[View]:
    """Labels of public examples, with noise if it is added, or their sum."""
    sizes = given.num_classes, given.steps
    settings = CoTraining(given.learner, given.public, *sizes, given.voting, given.privacy)
    rows, draw_of = int(played.after.rows), draws_of(played.key)
    return [
        labels_shown(
            *(given.learner, played.after.learner, played.cohort.client_id, given.num_classes),
            summed=given.voting.sums != "plaintext",
            released=lambda labels, client: settings.marks(labels, client, rows, draw_of),
        )
    ]


def _fedct_told(given: Any, played: Played) -> list[Instruction]:
    """The consensus."""
    return [Instruction(given.steps, True, played.before.label, played.before.weight)]


def _pate(given: Any, played: Played) -> list[View]:
    """Votes, their noisy counts, and the student; nothing before the vote."""
    if int(played.after.round) < given.teacher_rounds:
        return []
    _, noise_key, _ = jax.random.split(played.key, 3)
    shown = played.after.teachers, played.cohort.client_id, given.num_classes
    votes = labels_shown(given.learner, *shown, message="votes")
    counts = labels_shown(given.learner, *shown, message="counts", summed=True)
    num_teachers = max(len(votes.client), 1)

    def noisy(x: np.ndarray) -> np.ndarray:
        share = counts.answers(x)
        if not given.gamma:
            return share
        noise = np.asarray(jax.random.laplace(noise_key, share.shape))
        return (share + noise / (given.gamma * num_teachers)).astype(np.float32)

    student = _alone(given.server_learner, played.after.learner, given.num_classes, STUDENT)
    return [votes, counts._replace(answers=noisy), student]


def _xclp(given: Any, played: Played) -> list[View]:
    """One more client's rows of Z, and together with the server its distances of codes.

    Its unlabeled points are the examples that it is curious about. It comes in time: points that come late
    are not in its graph either.
    """
    p, execution = replace(given.parameters, seed=drawn_seed(played.key)), given.execution
    ids = np.asarray(played.cohort.client_id).tolist()
    vectors, labels = client_arrays(played.cohort)
    fraction, key = given.late_fraction, played.key
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


def _pooled_lp(given: Any, played: Played) -> list[View]:
    """One more client's rows of Z; its unlabeled points are the examples that it is curious about."""
    p, (vectors, labels) = given.p, client_arrays(played.cohort)
    sizes = list(map(len, vectors))

    def simulate(points: Sequence[np.ndarray], labelings: np.ndarray, rows: slice) -> np.ndarray:
        matrix = matrix_over_cosines(points, settings())
        return extra_client.scores_of_labelings(matrix, labelings, rows)

    @cache
    def settings() -> Propagation:
        if not p.asks_labels:
            return p
        y = one_hot_labels(np.concatenate(labels), p.num_classes)
        points, owner = np.concatenate(vectors), np.repeat(np.arange(len(sizes)), sizes)
        *_, choice = label_over_cosines(jnp.asarray(points), y, owner, p, given.execution)
        return choice.p if choice else p

    def label(points: np.ndarray) -> np.ndarray:
        there = slice(sum(sizes), sum(sizes) + len(points))
        return simulate([*vectors, points], np.concatenate(labels)[None], there)[0]

    unlabeled = [v[y < 0] for v, y in zip(vectors, labels, strict=True)]
    return extra_client.extra_client_views(label, simulate, unlabeled)


_Shown = tuple[Callable[..., list[View]], Callable[..., list[Instruction]] | None]
SHOWN: dict[str, _Shown] = {
    "local_learning": (_local_learning, None),
    "centralized": (_centralized, None),
    "distributed_distillation": (_distillation, _distillation_told),
    "dsfl": (_dsfl, _dsfl_told),
    "fedmd": (_fedmd, _fedmd_told),
    "fedct": (_fedct, _fedct_told),
    "pate": (_pate, None),
    "xclp": (_xclp, None),
    "pooled_lp": (_pooled_lp, None),
}
"""Name of a factory -> its views and instructions, functions of what it was given and of a round."""

# Their clients send no whole model, or begin with models of earlier rounds.
_UNKNOWN = ("fedper", "fedrep", "fedproto", "fedtgp", "fedbuff")
