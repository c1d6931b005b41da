"""Where clients are drawn far to what they agree on, shadows that are taught the same know them better."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from kernel_regression import CLASSES, overfitted_clients, regression
from shown_methods import shown

from jaxfed.algorithms.distributed_distillation import distributed_distillation
from jaxfed.audit.attacks import attacks, each
from jaxfed.audit.observations import drawn_targets, observations
from jaxfed.audit.shadows import on_own_labels, shadow_answers, shadow_memberships

CLIENTS, OWN, PUBLIC, ROUNDS, SHADOWS, SEEDS = 4, 20, 120, 3, 24, 5


def areas(seed, *, learns=True):
    """Attack and shadows -> area, of targets that the clients have, or of as many that nobody has."""
    federation = overfitted_clients(seed, clients=CLIENTS, own=OWN, public=PUBLIC)
    key = jax.random.key(seed)
    targets = drawn_targets(federation, population=40, seed=seed)
    played = federation
    if not learns:  # others' examples in place of the members
        rng = np.random.default_rng(1000 + seed)
        x = federation.x.copy()
        members = np.concatenate(federation.partition.labeled)
        x[members] = rng.normal(size=(len(members), 2))
        played = replace(federation, x=x)
    method = shown(
        distributed_distillation,
        network=regression,
        public=federation.public_examples,
        num_classes=CLASSES,
        steps=1,
    )
    state, told = method.init(key, played), []
    for number in range(1, ROUNDS + 1):
        before, own_key = state, jax.random.fold_in(key, number)
        state, _ = method.round(before, played.cohort(), own_key)
        told.append(method.instructions(before, state, played.cohort(), own_key))
    views = method.views(before, state, played.cohort(), own_key)
    seen = observations(views, federation, targets)
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


@pytest.mark.slow
def test_taught_shadows_find_more():
    """Of no attack less, of those that know both kinds of models clearly more; means over seeds."""
    found = [areas(seed) for seed in range(SEEDS)]
    for attack in BY_SHADOWS:
        gained = mean(found, attack, "taught") - mean(found, attack, "own_labels")
        assert gained > (0.05 if attack.endswith("online") else -0.01), attack


@pytest.mark.slow
def test_where_nobody_was_learnt_taught_shadows_guess():
    """AuditTargets that no client has: 0.5 is in the interval, but for one seed in twenty."""
    found = [areas(seed, learns=False) for seed in range(SEEDS)]
    inside = [
        one[attack, "taught"].low <= 0.5 <= one[attack, "taught"].high
        for one in found
        for attack in BY_SHADOWS
    ]
    assert np.mean(inside) > 0.8
    for attack in BY_SHADOWS:
        assert abs(mean(found, attack, "taught") - 0.5) < 0.05, attack
