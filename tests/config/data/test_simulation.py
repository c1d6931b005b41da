"""Examples of a config: what depends on the repeat, whose names clients have, what a run warns of."""

import numpy as np
import pytest
from absl import logging
from small_simulations import classes_of, simulation

from jaxfed.config import base
from jaxfed.config.data.simulation import Simulation
from jaxfed.errors import UsageError


@pytest.fixture
def said(monkeypatch):
    """Warnings, as they are given."""
    lines = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: lines.append(text % values))
    return lines


@pytest.mark.parametrize("rows", ["by_repeat", "shared"])
def test_scales_and_medians_are_of_the_training_rows_of_the_repeat(tmp_path, rows):
    """Not those of the first repeat, of which some are test rows of a later one."""
    rng = np.random.default_rng(0)
    lines = [f"{rng.normal() if i % 5 else ''},{i % 2}" for i in range(60)]
    (tmp_path / "set.csv").write_text("\n".join(["a,label", *lines]))
    config = base.get_config()
    config.dataset.name = str(tmp_path / "set.csv")
    config.dataset.test_rows, config.federation.test = rows, "central"
    config.preprocessing.kind, config.num_repeats = "standardized", 3
    ours = Simulation(config)
    for seed in (0, 1, 2, 1):
        federation = ours.federation(seed)
        training = np.setdiff1d(np.arange(60), federation.test)
        np.testing.assert_allclose(federation.x[training].mean(axis=0), 0, atol=1e-6)
        encoding, raw = ours.row_encoding(seed), [line.partition(",")[0] for line in lines]
        known = [float(value) for value in np.array(raw)[training] if value]
        np.testing.assert_allclose(encoding.gaps.medians, np.median(known), rtol=1e-6)
        np.testing.assert_array_equal(encoding([{"a": value} for value in raw]), federation.x)


def test_which_examples_are_taken_tells_nothing_of_who_holds_them(tmp_path):
    """One class has 34 of 100 and one of three clients holds 34: they are the same by chance only."""
    same = []
    for seed in range(100):
        keys = {"dataset.train_size": 100, "federation.num_clients": 3, "seed": seed}
        federation = simulation(tmp_path, 30, **keys).federation(seed)
        sizes = [len(federation.points(client)) for client in range(3)]
        same.append(np.argmax(classes_of(federation, slice(100))) == np.argmax(sizes))
    assert np.mean(same) == pytest.approx(1 / 3, abs=4 * np.sqrt(2 / 9 / len(same)))


@pytest.mark.parametrize("num_repeats", [1, 3])
def test_cohorts_have_room_for_the_clients_of_all_repeats(tmp_path, num_repeats):
    keys = {"federation.partition": "dirichlet", "num_repeats": num_repeats}
    ours = simulation(tmp_path, 0, **keys)
    federations = [ours.federation(seed) for seed in range(3)]
    largest = [federation.largest for federation in federations]
    assert len(set(largest)) > 1
    expected = largest if num_repeats == 1 else [max(largest)] * 3
    assert [federation.capacity for federation in federations] == expected
    assert [ours.partitioned(seed).cohort().mask.shape[1] for seed in range(3)] == expected


def test_a_client_that_holds_nothing_takes_no_others_name(tmp_path):
    names = np.array(["north", "south", "west"])[np.repeat(np.arange(3), (3, 30, 30))]
    y = np.arange(63) % 2
    np.savez(tmp_path / "set.npz", x=np.zeros((63, 1), np.float32), y=y, client_id=names)
    config = base.get_config()
    config.dataset.name, config.dataset.test_fraction = str(tmp_path / "set.npz"), 0.1
    config.federation.update({"partition": "natural", "num_clients": 0, "graph": "labeled"})
    config.federation.test, config.federation.labeled_fraction = "central", 0.07
    simulation = Simulation(config)
    counts = simulation.class_counts(simulation.partitioned(0))
    assert counts["labeled"].sum(axis=1)[0] == 0
    assert counts["client_names"] == ["0", "south", "west"]


def test_clients_hold_a_test_split_only_by_a_column_of_its_own(tmp_path):
    points = np.arange(60)
    np.savez(
        tmp_path / "set.npz",
        **{"x": points[:, None].astype(np.float32), "y": points % 2, "client_id": points % 4},
        x_test=np.zeros((4, 1), np.float32),
        y_test=np.arange(4) % 2,
    )
    config = base.get_config()
    config.dataset.name = str(tmp_path / "set.npz")
    config.federation.partition, config.federation.num_clients = "natural", 0
    config.federation.test = "clients"
    with pytest.raises(
        UsageError, match=r"config\.federation\.test='clients': .* has no client_id"
    ):
        Simulation(config).partitioned(0)
    config.federation.test = "central"
    Simulation(config).partitioned(0)


def unlabeled_simulation(tmp_path, **keys):
    """120 examples of two classes and two clients of their own; of every third nobody knows the class."""
    y = np.where(np.arange(120) % 3, np.arange(120) % 2, -1)
    x = np.arange(120, dtype=np.float32)[:, None]
    np.savez(tmp_path / "set.npz", x=x, y=y, class_names=["a", "b"], site=np.arange(120) // 60)
    config = base.get_config()
    config.dataset.name = str(tmp_path / "set.npz")
    config.dataset.client_key = "site"
    config.dataset.validation_fraction = 0.1
    config.federation.num_clients = 2
    config.federation.labeled_fraction = 0.5
    config.update_from_flattened_dict(keys)
    return Simulation(config)


CASES = {
    "iid": {},
    "dirichlet": {"federation.partition": "dirichlet"},
    "natural": {"federation.partition": "natural"},
    "revealed": {"federation.reveal_labels": True},
    "left out": {"federation.left_out_client": 0},
    "a part": {"dataset.train_size": 90},
}


@pytest.mark.parametrize("case", CASES)
def test_points_of_unknown_class_are_somebodys_unlabeled_ones(tmp_path, case):
    ours = unlabeled_simulation(tmp_path, **CASES[case])
    ours.warn()
    federation = ours.federation(0)
    part = federation.partition
    for points in (federation.validation, federation.test, *part.labeled, *part.new):
        assert (federation.y[points] >= 0).all()
    held = np.concatenate(part.unlabeled)
    unknown = np.flatnonzero(federation.y < 0)
    assert len(unknown) == (30 if case == "a part" else 40)
    np.testing.assert_array_equal(np.sort(held[federation.y[held] < 0]), unknown)
    counts = ours.class_counts(federation)
    assert counts["class_names"] == ("a", "b", "(unknown)")
    np.testing.assert_array_equal(counts["unlabeled"].sum(axis=0)[2], len(unknown))
    assert not counts["labeled"][:, 2].any()
    assert not counts["new"][:, 2].any()
    num_known = 60 if case == "a part" else 80
    if case == "revealed":
        assert (federation.y[held] < 0).all()
    elif case != "left out":  # shares are those of the examples whose class is known
        kept = num_known - round(0.2 * num_known) - len(federation.validation)
        assert sum(map(len, part.labeled)) == round(0.5 * kept)
        assert len(federation.validation) == round(0.1 * 0.8 * num_known)


@pytest.mark.parametrize(
    ("key", "scheme", "is_said"),
    [("site", "iid", True), ("site", "natural", False), ("", "iid", False)],
)
def test_clients_that_the_partition_ignores_are_named(tmp_path, said, key, scheme, is_said):
    keys = {"dataset.client_key": key, "federation.partition": scheme}
    simulation(tmp_path, 0, sites=True, **keys).warn()
    assert len(said) == is_said
    assert all("other clients than those that" in line for line in said)
