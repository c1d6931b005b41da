"""Attacks on messages whose members are known: what each kind admits, and that they find what is there."""

from typing import NamedTuple

import numpy as np
import pytest

from jaxfed.audit.attacks import OVER_ROUNDS, attacks, each, observation_scores, strongest
from jaxfed.audit.observations import AuditTargets, Observation, Shadows, observations
from jaxfed.audit.shadows import shadow_memberships
from jaxfed.audit.views import CLIENT, COALITION, View

CLASSES, POPULATION = 4, 60
ALL = {"gap", "loss", "population", "difficulty", "reference", "lira_offline", "rmia_offline"}
ONLINE = {"lira_online", "rmia_online"}


def drawn(clients=2, size=60):
    """AuditTargets of so many clients, half of each members."""
    number = clients * 2 * size
    return AuditTargets(
        np.arange(number),
        np.repeat(np.arange(clients, dtype=np.int32), 2 * size),
        np.tile(np.repeat([True, False], size), clients),
        np.arange(number, number + POPULATION),
    )


TARGETS = drawn()


def answers_of(is_in, ease, label, rng, effect):
    """Probabilities [..., n, C] by log-odds of the own class: ease, more for who is in, and noise."""
    phi = ease + effect * is_in + 0.5 * rng.normal(size=is_in.shape)
    own = 1 / (1 + np.exp(-phi))
    others = (1 - own) / (CLASSES - 1)
    marks = label[:, None] == np.arange(CLASSES)
    return np.where(marks, own[..., None], others[..., None]).astype(np.float32)


def world(effect, seed=0, kind="probabilities", shadows=20, targets=TARGETS, pooled=False):
    """A observation of every client's model (or of one of all), labels, and shadow models."""
    rng = np.random.default_rng(seed)
    number = len(targets.example)
    label = rng.integers(CLASSES, size=number + POPULATION).astype(np.int32)
    ease = 2 * rng.normal(size=number + POPULATION)
    none = np.zeros((1, POPULATION), bool)
    clients = np.asarray([-1]) if pooled else np.unique(targets.client)
    members = [targets.is_member & ((targets.client == c) | (c < 0)) for c in clients]
    is_in = np.concatenate([members, np.repeat(none, len(clients), axis=0)], axis=1)
    answers = answers_of(is_in, ease, label, rng, effect)
    if kind == "labels":
        answers = (answers.argmax(axis=-1)[..., None] == np.arange(CLASSES)).astype(np.float32)
    seen = Observation(
        "m", kind, clients.astype(np.int32), answers, np.zeros((len(clients), 0), np.float32)
    )
    if not shadows:
        return seen, label, None
    size = int(members[0].sum())
    drawn_in = shadow_memberships(number, size, shadows, seed)
    padded = np.concatenate([drawn_in, np.repeat(none, shadows, axis=0)], axis=1)
    return seen, label, Shadows(drawn_in, answers_of(padded, ease, label, rng, effect))


def found_in(seen, label, shadows, targets=TARGETS):
    return attacks({1: [seen]}, targets, label, lambda one, number: by_own(shadows))


def by_own(shadows):
    return {} if shadows is None else {"own_labels": shadows}


def areas(found, targets=TARGETS):
    return {one.attack: each(one, targets.is_member).area for one in found}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ALL | ONLINE),
        ({"pooled": True}, ALL | ONLINE),
        ({"shadows": 0}, {"gap", "loss", "population"}),
        ({"shadows": 2}, ALL),  # most have seen nobody
        ({"kind": "labels"}, {"gap", "difficulty", "reference"}),
        ({"kind": "labels", "shadows": 0}, {"gap"}),
    ],
)
def test_every_kind_has_its_attacks(changes, names):
    found = found_in(*world(1.5, **changes))
    assert {one.attack for one in found} == names
    for one in found:
        assert np.isfinite(one.score).all()


def test_counts_and_parameters_have_their_own():
    seen, label, shadows = world(1.5, kind="labels", pooled=True)
    counts = seen._replace(kind="counts", answers=0.5 * seen.answers + 0.1)
    assert {one.attack for one in found_in(counts, label, shadows)} == {"gap", "difficulty"}
    seen, label, shadows = world(1.5)
    norms = np.where(TARGETS.is_member, 1.0, 2.0)[None].repeat(2, axis=0).astype(np.float32)
    found = found_in(seen._replace(kind="parameters", norms=norms), label, shadows)
    assert areas(found)["gradient_norm"].auc == 1


class Lookup(NamedTuple):
    """The part of a federation that observations read."""

    x: np.ndarray
    y: np.ndarray


def labels_of_images(radius):
    """AUCs of attacks on a labeler that is right within a radius of a member, and of others at themselves.

    Queries come in the order of the images, 60 members and 60 others.
    """
    rng = np.random.default_rng(0)
    targets = drawn(clients=1)
    x = rng.uniform(size=(len(targets.example) + POPULATION, 6, 6, 1)).astype(np.float32)
    y = rng.integers(CLASSES, size=len(x)).astype(np.int32)
    reach = np.where(np.append(targets.is_member, np.zeros(POPULATION, bool)), radius, 1e-6)
    asked = []

    def answers(queries):
        asked.append(len(queries))
        number = len(queries)
        distance = np.linalg.norm((queries - x[:number]).reshape(number, -1), axis=1)
        said = (y[:number] + (distance > reach[:number])) % CLASSES
        return (said[:, None] == np.arange(CLASSES)).astype(np.float32)[None]

    view = View("labels", "labels", np.asarray([-1], np.int32), answers, adversary=CLIENT)
    [seen] = observations([view], Lookup(x, y), targets)
    assert asked == [len(x), *[len(targets.example)] * 16]  # 12 with noise, 4 translations
    assert seen.adversary == CLIENT
    found = attacks({1: [seen]}, targets, y, lambda one, number: {})
    assert {one.adversary for one in found} == {CLIENT}
    return {name: area.auc for name, area in areas(found, targets).items()}


def test_perturbed_queries_find_members_that_labels_alone_hide():
    found = labels_of_images(radius=1e3)
    assert found["gap"] == 0.5
    assert found["label_noise"] == found["label_translations"] == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_perturbed_queries_stay_within_the_values_of_the_examples(dtype):
    """A byte beyond its range would come back at the other end."""
    targets, queries = drawn(clients=1), []
    shape = (len(targets.examples), 6, 6, 1)
    x = np.random.default_rng(0).integers(5, 251, shape).astype(dtype)

    def answers(given):
        queries.append(given)
        return np.zeros((1, len(given), CLASSES), np.float32)

    view = View("labels", "labels", np.asarray([-1], np.int32), answers)
    observations([view], Lookup(x, np.zeros(len(x), np.int32)), targets)
    assert len(queries) == 17
    for given in queries:
        assert given.dtype == dtype
        assert x.min() <= given.min() <= given.max() <= x.max()


def test_distances_are_an_attack_of_their_own():
    """The nearest is a member; the population and shadows have no part in it."""
    seen, label, shadows = world(1.5, pooled=True)
    least = np.where(np.append(TARGETS.is_member, np.zeros(POPULATION)), 0.0, 181.0)
    near = seen._replace(
        kind="distances", answers=least[None, :, None].astype(np.float32), adversary=COALITION
    )
    found = found_in(near, label, shadows)
    assert [(one.attack, one.adversary) for one in found] == [("nearest", COALITION)]
    assert areas(found)["nearest"].auc == 1
    far = near._replace(answers=np.full_like(near.answers, 90))
    assert areas(found_in(far, label, shadows))["nearest"].auc == 0.5


def test_an_overfitted_model_is_found_and_lira_beats_the_loss():
    found = areas(found_in(*world(2.0, shadows=40)))
    assert found["loss"].low > 0.55
    for name in ("difficulty", "lira_offline", "lira_online", "rmia_offline", "rmia_online"):
        assert found[name].auc > found["loss"].auc + 0.08, name
    assert found["lira_online"].low > 0.8


def test_a_client_is_asked_about_its_own_targets():
    """What client 1's model says of client 0's targets is not looked at, nor a client that is not there."""
    seen, label, shadows = world(1.5)
    spoiled = seen.answers.copy()
    spoiled[1][:, :][np.flatnonzero(TARGETS.client == 0)] = 0.25
    first = observation_scores(seen, TARGETS, label, shadows)
    second = observation_scores(seen._replace(answers=spoiled), TARGETS, label, shadows)
    for name, score in first.items():
        np.testing.assert_array_equal(score, second[name])
    absent = seen._replace(client=seen.client[:1], answers=seen.answers[:1], norms=seen.norms[:1])
    alone = observation_scores(absent, TARGETS, label, shadows)
    assert (np.isnan(alone["loss"]) == (TARGETS.client == 1)).all()
    verdict = strongest(found_in(absent, label, shadows), TARGETS.is_member, 0)
    assert (verdict.members, verdict.others) == (60, 60)


def test_the_mean_over_rounds_is_of_the_rounds_that_score_a_target():
    """Client 0 takes part in rounds 1 and 2, client 1 in round 2, client 2 in none."""
    targets = drawn(clients=3)
    seen, label, _ = world(1.0, shadows=0, targets=targets)
    first, second = (
        seen._replace(client=seen.client[:n], answers=seen.answers[:n], norms=seen.norms[:n])
        for n in (1, 2)
    )
    second = second._replace(answers=np.sqrt(second.answers))
    found = attacks({1: [first], 2: [second]}, targets, label, lambda one, number: {})
    loss = {one.round: one.score for one in found if one.attack == "loss"}
    both = (loss[1] + loss[2]) / 2
    expected = np.choose(targets.client, [both, loss[2], np.nan])
    np.testing.assert_allclose(loss[OVER_ROUNDS], expected)
    assert np.isnan(expected).sum() == 120
