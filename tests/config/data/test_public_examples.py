"""federation.public_size, own_size, public_labeled: what everybody has."""

import numpy as np
import pytest
from small_simulations import classes_of, simulation

SIZE = {"federation.public_size": 30, "federation.test": "central"}


def held_by_clients(federation):
    return np.concatenate([federation.points(c) for c in range(federation.num_clients)])


@pytest.mark.parametrize("num_test", [0, 30])
@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_a_part_of_the_training_split_is_everybodys(tmp_path, num_test, partition):
    keys = SIZE | {"federation.partition": partition, "dataset.validation_fraction": 0.1}
    ours = simulation(tmp_path, num_test, **keys)
    ours.warn()
    first, second = ours.federation(0), ours.federation(1)
    for federation in (first, second):
        assert len(federation.public) == 30
        everything = np.concatenate(
            [held_by_clients(federation), federation.public, federation.validation, federation.test]
        )
        np.testing.assert_array_equal(np.sort(everything), np.arange(180 + num_test))
        np.testing.assert_array_equal(federation.public_examples[:, 0], federation.public)
        np.testing.assert_array_equal(federation.y[federation.public], federation.public // 60)
        assert federation.public_labels is None
    assert set(first.public) != set(second.public)
    np.testing.assert_array_equal(first.public, ours.federation(0).public)
    counts = ours.class_counts(first)["public"]
    np.testing.assert_array_equal(counts, [classes_of(first, first.public)])


def test_public_examples_are_drawn_at_random(tmp_path):
    """Their classes vary as in a draw without replacement: no class is promised its share."""
    ours = simulation(tmp_path, 30, **SIZE)
    table = np.array([classes_of(f, f.public) for f in map(ours.federation, range(200))])
    share, left = 1 / 3, (180 - 30) / (180 - 1)
    deviation = np.sqrt(30 * share * (1 - share) * left)
    assert np.abs(table.mean(axis=0) - 10).max() < 4 * deviation / np.sqrt(200)
    assert np.abs(table.std(axis=0) / deviation - 1).max() < 4 / np.sqrt(2 * 200)


def test_what_clients_have_can_stay_while_what_is_public_grows(tmp_path):
    """Figure 8 of FedCT: one thing changes. All of it by the seed."""

    def drawn(public_size, seed=0):
        keys = SIZE | {"federation.public_size": public_size, "federation.own_size": 60}
        ours = simulation(tmp_path, 30, **keys)
        ours.warn()
        return ours.federation(seed)

    small, middle, all_that_is_left = map(drawn, (5, 40, 120))
    for federation in (middle, all_that_is_left):
        for mine, theirs in zip(federation.partition, small.partition, strict=True):
            for points, same in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(points, same)
        assert not set(held_by_clients(federation)) & set(federation.public)
    assert len(held_by_clients(small)) == 60
    assert set(small.public) < set(middle.public) < set(all_that_is_left.public)
    assert [len(f.public) for f in (small, middle, all_that_is_left)] == [5, 40, 120]
    assert set(held_by_clients(small)) != set(held_by_clients(drawn(5, seed=1)))


def test_there_are_none_unless_asked_for(tmp_path):
    ours = simulation(tmp_path, 30)
    assert len(ours.federation(0).public) == 0
    assert "public" not in ours.class_counts(ours.federation(0))


def test_beside_a_server_with_labels(tmp_path):
    keys = SIZE | {"federation.labels_at": "server", "federation.num_labeled": 30}
    federation = simulation(tmp_path, 30, **keys).federation(0)
    apart = np.concatenate([held_by_clients(federation), federation.server, federation.public])
    np.testing.assert_array_equal(np.sort(apart), np.arange(180))


def test_labels_can_be_everybodys_too(tmp_path):
    federation = simulation(tmp_path, 0, **SIZE, **{"federation.public_labeled": True}).federation(
        0
    )
    np.testing.assert_array_equal(federation.public_labels, federation.y[federation.public])
