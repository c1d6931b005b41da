"""64 shadow models of an audit trained together, against one after another and a PyTorch loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import jax
import numpy as np
import optax

from benchmarks.rounds.fedavg_round import (
    NUM_CLASSES,
    Parameters,
    as_dict,
    labeled_clients,
    noisy_patterns,
    on_cpu,
)
from benchmarks.rounds.learners import IN_TURN, MULTIPLY_ADDS, RATE, TORCH, equally_good, torch_loop
from benchmarks.timing.contest import Contest, Work, optional_peer
from jaxfed.audit.observations import AuditTargets
from jaxfed.audit.shadows import shadow_federation, shadow_memberships
from jaxfed.learners import LEARNERS
from jaxfed.models.mlp import mlp
from jaxfed.models.model import normalized
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.specification import Training

SHADOWS, TARGETS, HELD_OUT = 64, 400, 500  # of one client with 200 labels
STEPS, BATCH = 50, 50


def shadow_models(with_peers: bool) -> Iterator[Contest]:
    """50 steps of 64 networks, each of its half of 400 images."""
    rng = np.random.default_rng(0)
    y = rng.integers(NUM_CLASSES, size=TARGETS + HELD_OUT).astype(np.int32)
    x = noisy_patterns(rng, y, side=28, channels=1, contrast=4)
    rows = np.arange(TARGETS)
    federation = labeled_clients(x, y, 1, TARGETS, NUM_CLASSES)
    targets = AuditTargets(rows, np.zeros(TARGETS, np.int32), rows < 0, rows[:0])
    is_in = shadow_memberships(TARGETS, TARGETS // 2, SHADOWS, seed=0)
    shadows = shadow_federation(federation, targets, is_in)
    mean, deviation = shadows.normalization
    training = Training(
        normalized(mlp(x.shape[1:], NUM_CLASSES), mean, deviation),
        local=LocalTraining(
            optimizer=optax.adam,
            learning_rate=optax.constant_schedule(RATE),
            batches=Batches("joint", BATCH, 1),
        ),
    )
    learner = LEARNERS["network"](training=training)
    start, key = learner.init(jax.random.key(0), shadows), jax.random.key(1)
    cohort, alone = shadows.cohort(), [shadows.cohort([one]) for one in range(SHADOWS)]

    def together() -> Parameters:
        return as_dict(learner.fit(start, cohort, None, key, STEPS).state.model)

    def in_turn() -> Parameters:
        state = start
        for one in alone:
            state = learner.fit(state, one, None, key, STEPS).state
        return as_dict(state.model)

    judged = equally_good(learner, start, x[TARGETS:], y[TARGETS:])
    peers: dict[str, Callable[[], Parameters]] = {IN_TURN: in_turn}
    if with_peers:
        loop = partial(torch_loop, steps=STEPS, batch=BATCH)
        peers |= optional_peer(TORCH, loop, shadows, as_dict(start.model))

    def the_same_or_as_good(ours: Parameters, theirs: Parameters) -> str:
        if all(np.array_equal(ours[name], theirs[name]) for name in ours):
            return "the same bits"
        return judged(ours, theirs)

    yield Contest(
        task="shadow models",
        case={"models": SHADOWS, "steps": STEPS, "batch": BATCH},
        ours=together,
        peers=peers,
        agreement=the_same_or_as_good,
        work=Work(2 * MULTIPLY_ADDS * SHADOWS * STEPS * BATCH, "matmul_f32_flops"),
        targets={name: 1.0 if on_cpu() else 2.0 for name in peers},
    )
