"""Some clients of a cohort train: which, on which labels, and what the others receive."""

import dataclasses
from functools import cache

import jax
import numpy as np
import pytest
from shown_methods import of_round
from small_training import (
    KEY,
    assert_same,
    federation_of,
    training_of,
    with_sources,
)

from jaxfed.algorithms.fedavg import fedavg
from jaxfed.audit.surface import surface_of
from jaxfed.training.local.batches import Batches
from jaxfed.training.round.runner import training_places

SIZES = [6, 5, 4, 7, 6, 3]
FEDERATION = federation_of(SIZES, num_labeled=2)
HALF = dataclasses.replace(  # clients 1, 3 and 5 have no labels
    FEDERATION,
    partition=FEDERATION.partition._replace(
        labeled=tuple(
            own if j % 2 == 0 else own[:0] for j, own in enumerate(FEDERATION.partition.labeled)
        )
    ),
)


def training_with(size, **changes):
    training = training_of(Batches("joint", 4, 1), **changes)
    return dataclasses.replace(training, training_cohort_size=size)


seen = []  # clients of each cohort that a method of `labeling` has labeled


@cache
def labeling(size):
    """FedAvg on the network's labels, compiled once for several tests; `size` clients train, 0 is all."""
    training = training_with(size, clients_multiple=2 if size else 1)
    network = training.pseudo_labels["network"]

    def label(state, cohort, key, communication):
        seen.append(np.asarray(cohort.client_id).tolist())
        return network(state, cohort, key, communication)

    return fedavg(training=with_sources(training, network=label), pseudo_label="network")


@pytest.mark.parametrize(
    ("size", "labeled"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (60, 3)]
)
def test_clients_with_and_without_labels_train_in_their_shares(size, labeled):
    cohort = HALF.cohort()
    drawn = [training_places(cohort, size, jax.random.key(number)) for number in range(20)]
    for places in drawn:
        assert len(places) == min(size, 6)
        assert (np.diff(places) > 0).all()
        assert np.sum(places % 2 == 0) == labeled
    assert len({tuple(places) for places in drawn}) == 1 or size < 6
    assert {*np.concatenate(drawn).tolist()} == {*range(6)} or size == 1


def test_a_round_is_that_of_the_clients_that_train_on_labels_of_all():
    """The source labels six clients; the new model is that of a round of the three, on the same labels."""
    few, every = labeling(3), labeling(0)
    state = few.init(KEY, HALF)
    places = training_places(HALF.cohort(), 3, KEY)
    seen.clear()
    after, metrics = few.round(state, HALF.cohort(), KEY)
    expected, alone = every.round(state, HALF.cohort(places.tolist()), KEY)
    assert seen == [[*range(6)], places.tolist()]
    assert int(metrics["clients"]) == int(alone["clients"]) == 3
    assert_same(after.model, expected.model)
    assert not np.array_equal(jax.tree.leaves(state.model)[0], jax.tree.leaves(after.model)[0])
    model = metrics["communication"]["upload"]["parameters"]
    assert model == alone["communication"]["upload"]["parameters"]
    assert metrics["communication"]["download"]["parameters"] == 2 * model


def seen_of(algorithm):
    return of_round(surface_of(fedavg, {}, algorithm))


def test_an_audit_sees_the_models_of_those_that_train():
    few, every = labeling(3), labeling(0)
    state, cohort = few.init(KEY, HALF), HALF.cohort([5, 4, 3, 2, 1, 0])
    places = training_places(HALF.cohort(), 3, KEY)
    after, _ = few.round(state, cohort, KEY)
    found = seen_of(few)(state, after, cohort, KEY)[0]
    expected = seen_of(every)(state, after, HALF.cohort(places.tolist()), KEY)[0]
    assert found.client.tolist() == expected.client.tolist() == places.tolist()
    np.testing.assert_array_equal(found.answers(HALF.x[:8]), expected.answers(HALF.x[:8]))
