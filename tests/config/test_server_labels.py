"""federation.labels_at = "server": what the server is given, who deals the rest, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from ml_collections import ConfigDict
from small_simulations import classes_of, simulation

from jaxfed.config.data.dealing import drawn_for_server

AT_SERVER = {"federation.labels_at": "server", "federation.test": "central"}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"federation.num_labeled": 30}, [10, 10, 10]),
        ({"federation.labeled_per_class": 4}, [4, 4, 4]),
        ({"federation.labeled_fraction": 0.5}, [30, 30, 30]),
    ],
)
@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_the_server_has_all_labels_and_clients_the_rest(tmp_path, keys, expected, partition):
    ours = simulation(tmp_path, 30, **AT_SERVER, **keys, **{"federation.partition": partition})
    ours.warn()
    first, second = ours.federation(0), ours.federation(1)
    np.testing.assert_array_equal(classes_of(first, first.server), expected)
    assert not any(map(len, first.partition.labeled))
    owned = np.concatenate([*first.partition.unlabeled, first.server])
    np.testing.assert_array_equal(np.sort(owned), np.arange(180))
    assert set(first.server) != set(second.server)
    np.testing.assert_array_equal(first.server, ours.federation(0).server)
    x, y = first.server_examples
    np.testing.assert_array_equal(x[:, 0] // 60, y)
    np.testing.assert_array_equal(ours.class_counts(first)["server"], [expected])


def test_labels_at_clients_are_dealt_as_ever(tmp_path):
    federation = simulation(tmp_path, 30).federation(0)
    assert federation.server_examples is None
    assert "server" not in simulation(tmp_path, 30).class_counts(federation)


def test_what_has_no_label_is_not_the_servers():
    y = np.array([0, 1, -1, 0, 1, -1, 0, 1])
    data = SimpleNamespace(y=y, is_labeled=y >= 0, num_classes=2, name="set")
    wanted = ConfigDict({"labels_at": "server", "labeled_per_class": 0, "num_labeled": 6})
    drawn = drawn_for_server(wanted, data, np.arange(8), 0)
    np.testing.assert_array_equal(drawn, np.flatnonzero(y >= 0))
