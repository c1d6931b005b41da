"""What is held out, and of which examples: by config.seed or by the repeat's, stratified by class."""

import numpy as np
import pytest

from jaxfed.config.simulation import Simulation
from ml_collections_configs import base


def simulation(tmp_path, num_test, **keys):
    """60 examples of each of three classes, of clients 0 to 5; the first column numbers them."""
    y = np.repeat(np.arange(3), 60)
    x = np.arange(len(y) + num_test, dtype=np.float32)[:, None]
    splits = {"x": x[: len(y)], "y": y}
    if num_test:
        splits |= {"x_test": x[len(y) :], "y_test": np.arange(num_test) % 3}
    np.savez(tmp_path / "set.npz", **splits)
    config = base.get_config()
    config.dataset.name = str(tmp_path / "set.npz")
    config.federation.num_clients = 4
    config.update_from_flattened_dict(keys)
    return Simulation(config)


def classes_of(federation, indices):
    return np.bincount(federation.y[indices], minlength=3)


def new_points(federation):
    return np.sort(np.concatenate(federation.partition.new))


@pytest.mark.parametrize("test", ["clients", "central"])
def test_a_test_split_is_drawn_once_for_all_repeats(tmp_path, test):
    """Mini-ImageNet comes without one; its authors' is a folder that stays the same."""
    keys = {"federation.test": test, "dataset.test_fraction": 1 / 6}
    ours = simulation(tmp_path, 0, **keys)
    splits = []
    for federation in map(ours.federation, range(3)):
        assert len(federation.test) == (30 if test == "central" else 0)
        points = federation.test if test == "central" else new_points(federation)
        np.testing.assert_array_equal(classes_of(federation, points), 10)
        splits.append(federation.x[points])
    np.testing.assert_array_equal(splits[0], splits[1])
    np.testing.assert_array_equal(splits[0], splits[2])
    others = simulation(tmp_path, 0, seed=1, **keys).federation(0)
    points = others.test if test == "central" else new_points(others)
    assert (others.x[points] != splits[0]).any()


def test_which_examples_are_taken_tells_nothing_of_who_holds_them(tmp_path):
    """One class has 34 of 100 and one of three clients holds 34: they are the same by chance only."""
    same = []
    for seed in range(100):
        keys = {"dataset.train_size": 100, "federation.num_clients": 3, "seed": seed}
        federation = simulation(tmp_path, 30, **keys).federation(seed)
        sizes = [len(federation.points(client)) for client in range(3)]
        same.append(np.argmax(classes_of(federation, slice(100))) == np.argmax(sizes))
    assert np.mean(same) == pytest.approx(1 / 3, abs=4 * np.sqrt(2 / 9 / len(same)))


@pytest.mark.parametrize("num_test", [0, 30])
def test_the_validation_split_is_stratified_and_each_repeats_own(tmp_path, num_test):
    ours = simulation(
        tmp_path,
        num_test,
        **{"federation.test": "central", "dataset.validation_fraction": 0.1},
    )
    federations = [ours.federation(seed) for seed in range(3)]
    for federation in federations:
        held = np.concatenate([federation.points(client) for client in range(4)])
        per_class = (60 if num_test else 48) * 0.1
        found = classes_of(federation, federation.validation)
        assert np.abs(found - per_class).max() < 1
        everything = np.concatenate([held, federation.validation, federation.test])
        np.testing.assert_array_equal(np.sort(everything), np.arange(180 + num_test))
    assert (federations[0].validation != federations[1].validation).any()


def test_parts_of_a_set_are_stratified(tmp_path):
    ours = simulation(tmp_path, 90, **{"dataset.train_size": 36, "dataset.test_size": 30})
    federation = ours.federation(0)
    np.testing.assert_array_equal(np.bincount(federation.y[:36]), 12)
    np.testing.assert_array_equal(np.bincount(federation.y[36:]), 10)


def test_natural_clients_hold_out_their_own_share(tmp_path):
    np.savez(
        tmp_path / "set.npz",
        x=np.zeros((120, 1), np.float32),
        y=np.arange(120) % 3,
        client_id=np.repeat(np.arange(6), 20),
    )
    config = base.get_config()
    config.dataset.name = str(tmp_path / "set.npz")
    config.federation.partition = "natural"
    config.federation.num_clients = 0
    config.dataset.test_fraction = 0.2
    federation = Simulation(config).federation(3)
    assert [len(points) for points in federation.partition.new] == [4] * 6
    for client in range(6):
        points = federation.points(client)
        np.testing.assert_array_equal(np.sort(points), np.arange(20 * client, 20 * client + 20))
