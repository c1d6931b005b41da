"""Where clients are drawn far to what they agree on, shadows that are taught the same know them better."""

from dataclasses import replace

import jax
import numpy as np
from scipy.special import softmax

from jaxfed.algorithms.distributed_distillation import distributed_distillation
from jaxfed.audit import (
    attacks,
    drawn_targets,
    on_own_labels,
    shadow_answers,
    shadow_memberships,
    sightings,
)
from jaxfed.audit.verdict import each
from jaxfed.data import Partition
from jaxfed.federation.clients import Federation
from jaxfed.learners.learner import Fitted, Learner

CLIENTS, OWN, PUBLIC, CLASSES, ROUNDS, SHADOWS, SEEDS = 4, 20, 120, 3, 3, 24, 5
WIDTH, RIDGE, SHARPNESS = 0.7, 0.3, 6.0


def kernel(a, b):
    return np.exp(-np.square(a[:, None] - b).sum(axis=-1) / (2 * WIDTH**2))


def regression(**network):
    """Ridge regression of marks and of what is taught, in a Gaussian kernel; noise of labels stays in it."""
    del network

    def init(key, federation):
        return {"models": [None] * federation.num_clients}

    def fit(state, cohort, taught, key, steps):
        models = list(state["models"])
        for client, own_x, own_y in zip(cohort.client_id, cohort.x, cohort.y, strict=True):
            is_own = np.asarray(own_y) >= 0
            x = np.asarray(own_x)[is_own]
            z = np.eye(CLASSES)[np.asarray(own_y)[is_own]]
            if taught is not None and np.any(taught.weight):
                x, z = np.concatenate([x, taught.x]), np.concatenate([z, taught.soft])
            gram = kernel(x, x) + RIDGE * np.eye(len(x))
            models[int(client)] = x, np.linalg.solve(gram, z - 1 / CLASSES)
        return Fitted({"models": models}, {}, {"clients": len(cohort.client_id)})

    def predict_proba(state, client_id, x):
        there = [state["models"][int(client)] for client in client_id]
        scores = [kernel(np.asarray(x), own) @ alpha for own, alpha in there]
        return softmax(SHARPNESS * np.stack(scores), axis=-1).astype(np.float32)

    def predict(state, client_id, x):
        return predict_proba(state, client_id, x).argmax(axis=-1).astype(np.int32)

    return Learner(init, fit, predict, predict_proba)


def clients(seed):
    """Labels of which three in ten are drawn anew."""
    rng = np.random.default_rng(seed)
    n = CLIENTS * OWN
    total = 2 * n + PUBLIC + 150
    x = rng.normal(size=(total, 2)).astype(np.float32)
    y = (x @ rng.normal(size=(2, CLASSES))).argmax(axis=1)
    y = np.where(rng.random(total) < 0.3, rng.integers(CLASSES, size=total), y).astype(np.int32)
    own = tuple(np.split(np.arange(n), CLIENTS))
    nothing = tuple(part[:0] for part in own)
    partition = Partition(own, nothing, nothing)
    public = np.arange(n, n + PUBLIC)
    return Federation(x, y, partition, CLASSES, public=public, test=np.arange(n + PUBLIC, total))


def areas(seed, *, learns=True):
    """Attack and shadows -> area, of targets that the clients have, or of as many that nobody has."""
    federation, key = clients(seed), jax.random.key(seed)
    targets = drawn_targets(federation, population=40, seed=seed)
    played = federation
    if not learns:  # others' examples in place of the members
        rng = np.random.default_rng(1000 + seed)
        x = federation.x.copy()
        members = np.concatenate(federation.partition.labeled)
        x[members] = rng.normal(size=(len(members), 2))
        played = replace(federation, x=x)
    method = distributed_distillation(
        network=regression, public=federation.public_examples, num_classes=CLASSES, steps=1
    )
    state, told = method.init(key, played), []
    for number in range(1, ROUNDS + 1):
        before, own_key = state, jax.random.fold_in(key, number)
        state, _ = method.round(before, played.cohort(), own_key)
        told.append(method.instructions(before, state, played.cohort(), own_key))
    views = method.views(before, state, played.cohort(), own_key)
    seen = sightings(views, federation, targets)
    is_in = shadow_memberships(len(targets.example), OWN, SHADOWS, seed)
    shadows = {
        how: shadow_answers(
            regression,
            federation,
            targets,
            is_in,
            instructions=instructions,
            observed=(ROUNDS,),
            key=key,
        )[ROUNDS]
        for how, instructions in (("own_labels", on_own_labels(ROUNDS, 1)), ("taught", told))
    }
    label = federation.y[targets.examples]
    found = attacks({ROUNDS: seen}, targets, label, lambda *_: shadows)
    return {
        (one.attack, one.shadows): each(one, targets.is_member).vulnerability.area for one in found
    }


BY_SHADOWS = ("lira_offline", "lira_online", "rmia_offline", "rmia_online", "reference")


def mean(found, attack, shadows):
    return np.mean([areas_of[attack, shadows].auc for areas_of in found])


def test_taught_shadows_find_more():
    """Of no attack less, of those that know both kinds of models clearly more; means over seeds."""
    found = [areas(seed) for seed in range(SEEDS)]
    for attack in BY_SHADOWS:
        gained = mean(found, attack, "taught") - mean(found, attack, "own_labels")
        assert gained > (0.05 if attack.endswith("online") else -0.01), attack


def test_where_nobody_was_learnt_taught_shadows_guess():
    """Targets that no client has: 0.5 is in the interval, but for one seed in twenty."""
    found = [areas(seed, learns=False) for seed in range(SEEDS)]
    inside = [
        one[attack, "taught"].low <= 0.5 <= one[attack, "taught"].high
        for one in found
        for attack in BY_SHADOWS
    ]
    assert np.mean(inside) > 0.8
    for attack in BY_SHADOWS:
        assert abs(mean(found, attack, "taught") - 0.5) < 0.05, attack
