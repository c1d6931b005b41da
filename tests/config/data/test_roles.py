"""Holders of examples: every role's size, its draw by the repeat's seed, its share of each class."""

import numpy as np
import pytest
from ml_collections import ConfigDict
from small_simulations import classes_of, simulation

from jaxfed.config.data.dealing import subsampled
from jaxfed.data import load, pack
from jaxfed.errors import UsageError

CENTRAL = {"federation.test": "central"}
SIXTH = {"dataset.test_fraction": 1 / 6}
VALIDATED = {**CENTRAL, "dataset.validation_fraction": 0.1}
PUBLIC = {**CENTRAL, "federation.public_size": 30}
AT_SERVER = {**CENTRAL, "federation.labels_at": "server"}
DIRICHLET = {"federation.partition": "dirichlet"}
UNEVEN = {"sizes": (30, 50, 40)}
POOLED = {"dataset.pooled": True, "dataset.test_size": 15, "dataset.validation_fraction": 1 / 9}

# name: (examples of the test split, keys, sizes of the roles)
CASES = {
    "own split": (30, {}, {"new": 30}),
    "central": (30, CENTRAL, {"test": 30}),
    "drawn": (0, SIXTH, {"new": 30}),
    "drawn, shared": (0, SIXTH | CENTRAL | {"dataset.test_rows": "shared"}, {"test": 30}),
    "parts": (90, {"dataset.train_size": 36, "dataset.test_size": 30}, {"new": 30}),
    "validation": (30, VALIDATED, {"test": 30, "validation": 18}),
    "public": (30, VALIDATED | PUBLIC, {"public": 30, "test": 30, "validation": 18}),
    "public, drawn": (0, PUBLIC | DIRICHLET, {"public": 30, "test": 36}),
    "server": (30, AT_SERVER | {"federation.num_labeled": 30}, {"server": 30, "test": 30}),
    "server, each": (
        30,
        AT_SERVER | {"federation.labeled_per_class": 4},
        {"server": 12, "test": 30},
    ),
    "server, share": (
        30,
        AT_SERVER | DIRICHLET | {"federation.labeled_fraction": 0.5},
        {"server": 90, "test": 30},
    ),
    "server, public": (
        30,
        AT_SERVER | PUBLIC | {"federation.num_labeled": 30},
        {"server": 30, "public": 30, "test": 30},
    ),
    "pooled": (30, CENTRAL | UNEVEN | POOLED, {"test": 15, "validation": 15}),
    "pooled, share": (
        30,
        CENTRAL | UNEVEN | {"dataset.pooled": True, "dataset.test_fraction": 0.2},
        {"test": 30},
    ),
    "balanced": (
        30,
        CENTRAL | UNEVEN | POOLED | {"dataset.balanced": True, "dataset.train_size": 90},
        {"test": 15, "validation": 10},
    ),
}


def roles_of(federation):
    part = federation.partition
    own = {kind: np.concatenate(getattr(part, kind)) for kind in part._fields}
    return own | {
        role: getattr(federation, role) for role in ("server", "public", "validation", "test")
    }


@pytest.mark.parametrize("case", CASES)
def test_roles_have_their_sizes_and_shares_and_are_drawn_by_the_repeat(case, tmp_path):
    num_test, keys, sizes = CASES[case]
    ours = simulation(tmp_path, num_test, **keys)
    ours.warn()
    first, again, second = (roles_of(ours.federation(seed)) for seed in (0, 0, 1))
    federation = ours.federation(0)
    everything = np.concatenate(list(first.values()))
    np.testing.assert_array_equal(np.sort(everything), np.arange(len(federation.y)))
    totals, counts = classes_of(federation, everything), ours.class_counts(federation)
    for role in ("new", "server", "public", "validation", "test"):
        points = first[role]
        assert len(points) == sizes.get(role, 0), role
        np.testing.assert_array_equal(points, again[role])
        is_own = role in ("new", "test") and (num_test > 0 and "dataset.pooled" not in keys)
        is_shared = role in ("new", "test") and keys.get("dataset.test_rows") == "shared"
        if sizes.get(role) and role != "new":
            assert (set(points) == set(second[role])) == (is_own or is_shared), role
        if role in ("server", "public"):
            found = counts.get(role, np.zeros((1, 3)))
            np.testing.assert_array_equal(found[0, :3], classes_of(federation, points))
        if role != "public":  # the classes of public examples are left to chance
            shares = len(points) * totals / totals.sum()
            assert np.abs(classes_of(federation, points) - shares).max() < 1, role
    if "balanced" in case:
        assert len(set(totals)) == 1
    if "server" in case:
        assert not len(first["labeled"])
        x, y = federation.server_examples
        np.testing.assert_array_equal(x[:, 0] // 60, y)


def test_public_examples_are_drawn_at_random(tmp_path):
    """Their classes vary as in a draw without replacement: no class is promised its share."""
    ours = simulation(tmp_path, 30, **PUBLIC)
    table = np.array([classes_of(f, f.public) for f in map(ours.federation, range(200))])
    share, left = 1 / 3, (180 - 30) / (180 - 1)
    deviation = np.sqrt(30 * share * (1 - share) * left)
    assert np.abs(table.mean(axis=0) - 10).max() < 4 * deviation / np.sqrt(200)
    assert np.abs(table.std(axis=0) / deviation - 1).max() < 4 / np.sqrt(2 * 200)


def test_what_clients_have_can_stay_while_what_is_public_grows(tmp_path):
    """Figure 8 of FedCT: one thing changes. All of it by the seed."""

    def drawn(public_size, seed=0):
        keys = {"federation.public_size": public_size, "federation.own_size": 60}
        return simulation(tmp_path, 30, **CENTRAL, **keys).federation(seed)

    def held(federation):
        return {*np.concatenate([federation.points(client) for client in range(4)])}

    small, middle, all_that_is_left = federations = [drawn(size) for size in (5, 40, 120)]
    for federation in federations:
        for mine, theirs in zip(federation.partition, small.partition, strict=True):
            for points, same in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(points, same)
        assert not held(federation) & set(federation.public)
    assert len(held(small)) == 60
    assert set(small.public) < set(middle.public) < set(all_that_is_left.public)
    assert [len(f.public) for f in federations] == [5, 40, 120]
    assert held(small) != held(drawn(5, seed=1))


def test_labels_of_public_examples_can_be_everybodys(tmp_path):
    federation = simulation(tmp_path, 0, **PUBLIC, **{"federation.public_labeled": True})
    federation = federation.federation(0)
    np.testing.assert_array_equal(federation.public_labels, federation.y[federation.public])
    assert simulation(tmp_path, 0, **PUBLIC).federation(0).public_labels is None


def uneven(tmp_path, num_test=30, **keys):
    return simulation(tmp_path, num_test, **{**CENTRAL, **UNEVEN, **keys})


def test_numbers_of_a_pooled_set_are_those_of_its_own_splits(tmp_path):
    ours = uneven(tmp_path, **POOLED, **{"dataset.train_size": 60})
    federation = ours.federation(0)
    np.testing.assert_array_equal(federation.x[:, 0], ours.numbers)
    assert len(ours.numbers) == 60 + 15
    assert len(federation.test) == 15
    assert sum(len(federation.points(client)) for client in range(4)) == 60 - round(60 / 9)


def test_clients_of_their_own_are_pooled_with_the_examples(tmp_path):
    keys = {"dataset.client_key": "site", "federation.partition": "natural"}
    keys |= {"federation.num_clients": 0, "federation.test": "clients"}
    federation = uneven(tmp_path, sites=True, **POOLED, **keys).federation(0)
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
    federation = uneven(tmp_path, num_unlabeled=100, **keys).federation(0)
    known = federation.y >= 0
    assert (np.sum(known), np.sum(~known)) == (60, 40)
    assert classes_of(federation, known).tolist() == ([20, 20, 20] if balanced else [16, 24, 20])
    sizes = [len(federation.points(client)) for client in range(4)]
    assert sizes == [22] * 4  # 48 and 40 among four


def test_a_test_split_of_no_client_is_not_pooled(tmp_path):
    clients = [(np.zeros((4, 2), np.float32), [0, 1, 0, 1])] * 3
    folder = pack(clients, tmp_path / "clients", test=clients[0])
    config = ConfigDict({"pooled": True})
    with pytest.raises(UsageError, match=r"dataset.pooled=True: .* belong to no client"):
        subsampled(load(folder), ConfigDict({"dataset": config, "seed": 0}))
