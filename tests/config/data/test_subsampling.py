"""What is taken of a data set: both splits together, as many of each class, unlabeled examples apart."""

import numpy as np
import pytest
import small_simulations
from ml_collections import ConfigDict

from jaxfed.config.data.dealing import subsampled
from jaxfed.data import load, pack
from jaxfed.errors import UsageError

SIZES = (30, 50, 40)  # of the classes in the training split


def simulation(tmp_path, *, num_test=30, **keys):
    keys = {"federation.test": "central", **keys}
    return small_simulations.simulation(tmp_path, num_test, sizes=SIZES, **keys)


def classes_of(federation, indices):
    return np.bincount(federation.y[indices], minlength=3).tolist()


def held_by_clients(federation):
    return np.concatenate([federation.points(c) for c in range(federation.num_clients)])


POOLED = {"dataset.pooled": True, "dataset.test_size": 15, "dataset.validation_fraction": 1 / 9}


def test_numbers_of_a_pooled_set_are_those_of_its_own_splits(tmp_path):
    ours = simulation(tmp_path, **POOLED, **{"dataset.train_size": 60})
    federation = ours.federation(0)
    np.testing.assert_array_equal(federation.x[:, 0], ours.numbers)
    assert len(ours.numbers) == 60 + 15
    assert len(federation.test) == 15
    assert len(held_by_clients(federation)) == 60 - round(60 / 9)


def test_a_set_without_a_split_of_its_own_is_pooled_already(tmp_path):
    keys = {"dataset.test_size": 12}
    plain, pooled = (
        simulation(tmp_path, num_test=0, **keys, **{"dataset.pooled": is_pooled}).federation(0)
        for is_pooled in (False, True)
    )
    assert classes_of(plain, plain.test) == [3, 5, 4]
    np.testing.assert_array_equal(plain.test, pooled.test)


def test_clients_of_their_own_are_pooled_with_the_examples(tmp_path):
    keys = {"dataset.client_key": "site", "federation.partition": "natural"}
    keys |= {"federation.num_clients": 0, "federation.test": "clients"}
    federation = simulation(tmp_path, sites=True, **POOLED, **keys).federation(0)
    assert federation.num_clients == 4
    for client in range(4):
        numbers = federation.x[federation.points(client), 0].astype(int)
        site = np.where(numbers < 120, numbers % 4, (numbers - 120) % 4)
        np.testing.assert_array_equal(site, client)
    assert sum(map(len, federation.partition.new)) == 15


@pytest.mark.parametrize("balanced", [False, True])
def test_examples_without_a_label_are_taken_apart(tmp_path, balanced):
    keys = {"dataset.train_size": 48, "dataset.test_size": 12, "dataset.balanced": balanced}
    keys |= {"dataset.unlabeled_size": 40, "dataset.pooled": True}
    federation = simulation(tmp_path, num_unlabeled=100, **keys).federation(0)
    known = federation.y >= 0
    assert (np.sum(known), np.sum(~known)) == (60, 40)
    assert classes_of(federation, known) == ([20, 20, 20] if balanced else [16, 24, 20])
    sizes = [len(federation.points(client)) for client in range(4)]
    assert sizes == [22] * 4  # 48 and 40 among four


def test_balanced_without_a_number_takes_all_that_have_no_label(tmp_path):
    keys = {"dataset.balanced": True, "dataset.train_size": 30}
    federation = simulation(tmp_path, num_unlabeled=25, **keys).federation(0)
    assert np.sum(federation.y < 0) == 25


def test_a_test_split_of_no_client_is_not_pooled(tmp_path):
    clients = [(np.zeros((4, 2), np.float32), [0, 1, 0, 1])] * 3
    folder = pack(clients, tmp_path / "clients", test=clients[0])
    config = ConfigDict({"pooled": True})
    with pytest.raises(UsageError, match=r"dataset.pooled=True: .* belong to no client"):
        subsampled(load(folder), ConfigDict({"dataset": config, "seed": 0}))
