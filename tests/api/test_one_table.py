"""Methods that label in one shot and methods that train are tested on the same rows, or refused."""

import numpy as np
import pytest

import jaxfed
from jaxfed.config.methods import clients_for

SMALL = {"num_repeats": 1, "rounds": 6, "execution__plots": False, "progress": False}
SMALL |= {"dataset__train_size": 300, "xclp__num_bits": 64, "model__hidden": (8,)}


@pytest.fixture(scope="module")
def result():
    return jaxfed.run("xclp_digits", baselines=("fedavg", "client_knn", "local_learning"), **SMALL)


def test_both_are_tested_on_the_clients_new_points(result):
    accuracy = result.results.set_index(["algorithm", "metric"])["mean"]
    tested = {}
    for method in result.methods:
        rows = result.predictions(method)
        rows = rows[rows["role"].isin(["new", "test"])]
        tested[method] = sorted(set(rows["index"]))
        assert accuracy[method, "test_accuracy"] == pytest.approx((rows.label == rows.truth).mean())
    assert len(tested["xclp"]) > 50
    assert all(rows == tested["xclp"] for rows in tested.values())


def test_a_model_never_learns_from_them(result):
    federation = result.federation()
    new = np.concatenate(federation.partition.new)
    held = clients_for(result.config, "fedavg", federation)
    assert clients_for(result.config, "xclp", federation) is federation
    assert sorted(held.test) == sorted(new)
    assert not np.isin(np.concatenate([held.points(c) for c in range(held.num_clients)]), new).any()
    opened = jaxfed.open(result.workdir)
    labels = opened.model("fedavg")(federation.x[new]).argmax(axis=1)
    rows = result.predictions("fedavg").set_index("index").label
    np.testing.assert_array_equal(labels, rows[opened._source.numbers[new]])
