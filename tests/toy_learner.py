"""A learner that can be followed by hand: class means that move by a half to those of labels, step by
step."""

from typing import NamedTuple

import jax
import numpy as np

from jaxfed.data import Partition
from jaxfed.federation.clients import Federation
from jaxfed.learners.learner import SPOILED, Fitted, Learner

NUM_CLASSES, NUM_CLIENTS, NUM_PUBLIC = 3, 4, 24


class Means(NamedTuple):
    center: np.ndarray  # float64 [M, C, d]
    is_there: np.ndarray  # bool [M]


def step(center, x, y, weight):
    """One step: every class that has weight moves half way to its mean."""
    moved = center.copy()
    for c in range(len(center)):
        own = np.where(y == c, weight, 0)
        if own.sum() > 0:
            moved[c] += 0.5 * ((own[:, None] * x).sum(axis=0) / own.sum() - center[c])
    return moved


def nearest(center, x):
    return np.square(x[:, None] - center).sum(axis=-1).argmin(axis=1).astype(np.int32)


def toy(*, fails=(), mute=(), has_probabilities=True):
    """Clients in `fails` cannot be fitted, those in `mute` cannot answer."""

    def init(key, federation):
        shape = (federation.num_clients, federation.num_classes, federation.x.shape[1])
        return Means(np.zeros(shape), np.zeros(federation.num_clients, bool))

    def fit(state, cohort, targets, key, steps):
        center, is_there = state.center.copy(), state.is_there.copy()
        failed = {}
        for place, client in enumerate(np.asarray(cohort.client_id).tolist()):
            if client in fails:
                failed[client] = "no"
            elif client >= 0:
                own = np.asarray(cohort.y[place]) >= 0
                x, y = np.asarray(cohort.x[place])[own], np.asarray(cohort.y[place])[own]
                weight = np.ones(len(y))
                if targets is not None:
                    x = np.concatenate([x, targets.x])
                    y = np.concatenate([y, targets.label])
                    weight = np.concatenate([weight, targets.weight])
                for _ in range(steps):
                    center[client] = step(center[client], x, y, weight)
                is_there[client] = True
        worked = sum(client >= 0 for client in cohort.client_id) - len(failed)
        return Fitted(Means(center, is_there), failed, {"clients": worked, "fit_accuracy": 0.5})

    def predict(state, client_id, x):
        labels = np.full((len(client_id), len(x)), -1, np.int32)
        for place, client in enumerate(np.asarray(client_id).tolist()):
            if client in mute:
                labels[place] = SPOILED
            elif client >= 0 and state.is_there[client]:
                labels[place] = nearest(state.center[client], x)
        return labels

    def predict_proba(state, client_id, x):
        labels = predict(state, client_id, x)
        classes = np.arange(state.center.shape[1])
        spread = 0.7 * (labels[..., None] == classes) + 0.1
        spread = np.where(labels[..., None] == SPOILED, np.nan, spread)
        return np.where(labels[..., None] == -1, 0, spread).astype(np.float32)

    return Learner(
        init, fit, predict, predict_proba if has_probabilities else None, continues=False
    )


def clients(seed=0, spread=0.9):
    """Four unequal clients with noisy labels of three classes, public, test and validation examples."""
    rng = np.random.default_rng(seed)
    sizes = (9, 5, 12, 7)
    total = sum(sizes) + NUM_PUBLIC + 40
    y = rng.integers(NUM_CLASSES, size=total).astype(np.int32)
    corners = np.eye(NUM_CLASSES)
    x = (corners[y] + spread * rng.standard_normal((total, NUM_CLASSES))).astype(np.float32)
    cuts = np.cumsum([*sizes, NUM_PUBLIC, 20])
    *own, public, test, validation = np.split(np.arange(total), cuts)
    nothing = tuple(part[:0] for part in own)
    return Federation(
        x,
        y,
        Partition(tuple(own), nothing, nothing),
        NUM_CLASSES,
        validation=validation,
        test=test,
        public=public,
    )


def rounds_of(algorithm, federation, number=1, cohorts=None, change=lambda cohort: cohort):
    """States from the start on, and metrics of the rounds."""
    key = jax.random.key(0)
    states, told = [algorithm.init(key, federation)], []
    for index in range(number):
        cohort = change(federation.cohort(cohorts[index] if cohorts else None))
        state, metrics = algorithm.round(states[-1], cohort, jax.random.fold_in(key, index))
        states.append(state)
        told.append(metrics)
    return states, told
