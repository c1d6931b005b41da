"""federation.public_size, public_dataset, public_labeled: what everybody has, and what is refused."""

import numpy as np
import pytest
from small_simulations import classes_of, simulation

from jaxfed.config import base, file
from jaxfed.config.data import dealing
from jaxfed.config.data.simulation import clients_set, public_set
from jaxfed.data import Dataset
from jaxfed.errors import UsageError

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


def test_rows_of_another_public_set_are_not_those_that_clients_own():
    """Two sets of one size: a common stream would draw the same rows of both."""
    labels = np.arange(180) % 2
    data = Dataset("own", np.zeros((180, 1)), labels, np.zeros((0, 1)), labels[:0], 2, ("a", "b"))
    config = base.get_config()
    config.federation.own_size = config.federation.public_size = 60
    config.dataset.test_fraction = 1e-9
    drawn = dealing.dealt(config, data, data, 0)
    assert set(drawn.partition.joined.joined) != set(drawn.public - 180)


def test_own_examples_beside_another_public_set(tmp_path):
    keys = write_public(tmp_path) | {"federation.own_size": 60, "federation.test": "central"}
    federation = simulation(tmp_path, 30, **keys).federation(0)
    assert len(held_by_clients(federation)) == 60
    assert len(federation.public) == 50


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
    assert federation.num_public_classes == 3


def write_public(tmp_path, *, names=("a", "b"), shape=(50, 1)):
    y = np.arange(50) % 2
    y[:10] = -1
    x = np.arange(1000, 1050, dtype=np.float32)[:, None] * np.ones(shape, np.float32)
    np.savez(tmp_path / "public.npz", x=x, y=y, class_names=names)
    return {"federation.public_dataset": str(tmp_path / "public.npz")}


@pytest.mark.parametrize("names", [("a", "b"), ("0", "1", "2")])
@pytest.mark.parametrize("size", [0, 20])
@pytest.mark.parametrize("labeled", [False, True])
def test_another_data_set_is_everybodys(tmp_path, names, size, labeled):
    """Ten of its fifty examples nobody knows the class of; its classes may be the clients' or others."""
    keys = write_public(tmp_path, names=names) | {
        "federation.public_size": size,
        "federation.public_labeled": labeled,
    }
    ours = simulation(tmp_path, 30, **keys)
    ours.warn()
    federation = ours.federation(0)
    assert len(federation.public) == (size or (40 if labeled else 50))
    values = federation.public_examples[:, 0].astype(int)
    assert values.min() >= (1010 if labeled else 1000)
    known = np.where(values < 1010, -1, values % 2)
    same = names == ("0", "1", "2")
    np.testing.assert_array_equal(federation.y[federation.public], known if same else -1)
    if labeled:
        np.testing.assert_array_equal(federation.public_labels, known)
        assert federation.num_public_classes == len(names)
    np.testing.assert_array_equal(np.sort(held_by_clients(federation)), np.arange(210))
    assert (ours.numbers[federation.public] == -1).all()
    counts = ours.class_counts(federation)
    assert counts["class_names"][-1] == "(unknown)"
    assert counts["public"].sum() == len(federation.public)
    assert {"x_public", "y_public"} <= ours.data_checksums().keys()


def test_public_examples_are_preprocessed_as_the_others_are(tmp_path):
    keys = write_public(tmp_path) | {"preprocessing.kind": "standardized"}
    federation = simulation(tmp_path, 30, **keys).federation(0)
    mean, deviation = np.arange(180).mean(), np.arange(180).std()
    expected = (np.arange(1000, 1050) - mean) / deviation
    np.testing.assert_allclose(federation.public_examples[:, 0], expected, rtol=1e-5)


def test_predictions_of_them_must_fit_into_memory(tmp_path, monkeypatch):
    ours = simulation(tmp_path, 30, **SIZE)
    monkeypatch.setattr(
        "jaxfed.federation.execution.settings.available_bytes", lambda: 4 * 4 * 30 - 1
    )
    with pytest.raises(UsageError, match=r"public_size=30: 4 clients' labels of them"):
        ours.warn()


def test_a_public_table_has_the_columns_of_the_clients_own(tmp_path):
    rows = [f"{i},{i % 4},north,{'ab'[i % 2]}" for i in range(40)]
    for name, part in (("own", rows), ("public", rows[:30])):
        text = "\n".join(["first,second,site,kind", *part, ""])
        (tmp_path / f"{name}.csv").write_text(text)
    keys = ("label_key=kind", "client_key=site", "drop=second", f"name={tmp_path / 'own.csv'}")
    own = [f"dataset.{key}" for key in keys]
    config = file.load("fedct.py", [*own, f"federation.public_dataset={tmp_path / 'public.csv'}"])
    data = clients_set(config)
    public = public_set(config, data)
    assert public.x.shape[1:] == data.x.shape[1:] == (1,)
    assert public.class_names == ("a", "b")


@pytest.mark.parametrize(
    ("header", "color", "told"),
    [
        ("first,color,kind", "red", ""),
        ("color,first,kind", "red", "number 0 is 'color=green', in .*own.csv it is 'first'"),
        ("first,color,kind", "blue", "number 1 is 'color=blue', in .*own.csv it is 'color=green'"),
    ],
)
def test_a_public_table_of_other_features_is_refused(tmp_path, header, color, told):
    """As many features in another order, or of other texts, would be taken for the clients' own."""
    for name, names, other in (("own", "first,color,kind", "red"), ("public", header, color)):
        rows = [
            {"first": str(i), "color": ("green", other)[i % 2], "kind": "ab"[i % 2]}
            for i in range(20)
        ]
        lines = [",".join(row[name] for name in names.split(",")) for row in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join([names, *lines, ""]))
    own = [f"dataset.name={tmp_path / 'own.csv'}", "dataset.label_key=kind"]
    config = file.load("fedct.py", [*own, f"federation.public_dataset={tmp_path / 'public.csv'}"])
    data = clients_set(config)
    if told:
        with pytest.raises(UsageError, match=f"its features are others: {told}; use the same col"):
            public_set(config, data)
    else:
        assert public_set(config, data).names == data.names
