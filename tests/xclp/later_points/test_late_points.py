"""XCLP's key late_fraction: who comes late, and what the others' labels have to do with it."""

import jax
import numpy as np
import pytest
from shown_methods import shown

from jaxfed.algorithms.xclp import late_points, xclp
from jaxfed.config import file as config_file
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data.simulation import Simulation
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution import HERE

KEY = jax.random.key(5)
SMALL = (
    *("xclp.num_bits=256", "xclp.num_neighbors=4", "federation.labeled_fraction=0.3"),
    *("dataset.train_size=180", "dataset.test_size=60"),
)
SETTINGS = {"num_classes": 3, "num_bits": 256, "num_neighbors": 4}


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((3, 12)) * 3
    clients = []
    for size in (30, 0, 17, 42):
        y = rng.integers(3, size=size)
        x = centers[y] + rng.standard_normal((size, 12))
        clients.append((x.astype(np.float32), np.where(np.arange(size) < 5, y, -1)))
    return Federation.from_clients(clients, num_classes=3)


def labeled(federation, clients=None, **keywords):
    method = xclp(**SETTINGS, **keywords)
    state = method.init(KEY, federation)
    return method.round(state, federation.cohort(clients), KEY)


def without_late(federation):
    """A federation of the points that come in time, and which of each client's do not."""
    cohort = federation.cohort()
    clients, is_late = [], []
    for row, mask in enumerate(np.asarray(cohort.mask)):
        y = np.asarray(cohort.y)[row, mask]
        is_late.append(late_points(y, 0.5, row, KEY))
        clients.append((np.asarray(cohort.x)[row, mask][~is_late[-1]], y[~is_late[-1]]))
    return Federation.from_clients(clients, num_classes=3), is_late


@pytest.mark.slow
def test_late_points_have_no_part_in_the_others_labels(federation):
    """The graph with them taken out of the data gives the others the same."""
    late, _ = labeled(federation, late_fraction=0.5)
    early_ones, is_late = without_late(federation)
    early, _ = labeled(early_ones)
    for row, own in enumerate(is_late):
        count = np.sum(~own)
        np.testing.assert_array_equal(late.label[row, : len(own)][~own], early.label[row, :count])
        np.testing.assert_array_equal(
            late.confidence[row, : len(own)][~own], early.confidence[row, :count]
        )
        assert np.all(late.label[row, : len(own)][own] >= 0)
        assert np.all(late.label[row, len(own) :] == -1)


def test_who_looks_sees_the_graph_of_the_round(federation):
    """An audit asks the labeling that is attacked: late points are not in it."""
    seen = []
    for of, fraction in ((federation, 0.5), (without_late(federation)[0], 0.0), (federation, 0.0)):
        view, *_ = shown(xclp, **SETTINGS, execution=HERE, late_fraction=fraction).views(
            None, None, of.cohort(), KEY
        )
        seen.append(view.answers(np.asarray(federation.x)[:6]))
    np.testing.assert_array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])


def test_the_shipped_variant():
    """Its methods follow the settings of XCLP, and half of the points lose little by coming late."""
    config = config_file.load("xclp_digits:late", SMALL)
    federation = Simulation(config).federation(0)
    accuracy = {}
    for name in ("xclp", "xclp_half_late"):
        method = make_algorithm(config, name, federation)
        state, _ = method.round(method.init(KEY, federation), federation.cohort(), KEY)
        accuracy[name] = method.evaluate(state, federation)["test_accuracy"]
    assert accuracy["xclp_half_late"] > accuracy["xclp"] - 0.1
