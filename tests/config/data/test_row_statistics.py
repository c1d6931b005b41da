"""Exact statistics of clients' rows: no private method depends on any."""

from dataclasses import replace

import numpy as np
import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file as config_file
from jaxfed.config import methods
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data.simulation import Simulation
from jaxfed.errors import UsageError
from jaxfed.testing.method_checks import arranged, started

SMALL = ("dataset.train_size=300", "federation.num_clients=4", "rounds=3", "num_repeats=1")
PRIVATE = ("dp_fedavg", "dp_fedavg_records")


def config_of(name, *settings, file="fedavg_xclp.py"):
    return config_file.load(file, (*SMALL, f"algorithm={name}", "baselines=()", *settings))


def test_methods_with_a_budget_are_private():
    config = config_file.load("fedavg_xclp.py", SMALL)
    budgets = [n for n in ALGORITHMS if "target_epsilon" in methods.all_keywords(config, n)]
    assert sorted(budgets) == sorted(PRIVATE)
    assert [n for n in ALGORITHMS if methods.needs(config, n).private] == budgets


@pytest.mark.parametrize("num_public", [0, 40])
@pytest.mark.parametrize("name", [*PRIVATE, "fedavg"])
def test_one_clients_rows_change_no_private_methods_inputs(name, num_public):
    """The network as it starts has the same outputs whatever a client holds; FedAvg's has not."""
    config, federation, _ = arranged("fedavg")
    federation = replace(federation, public=federation.test[:num_public])
    rows = federation.x.copy()
    rows[federation.points(0)] *= 0.1
    before, after = (
        algorithm.predict(started(algorithm, clients), federation.x[federation.test])
        for clients in (federation, replace(federation, x=rows))
        for algorithm in [make_algorithm(config, name, clients)]
    )
    assert np.array_equal(before, after) == (name in PRIVATE)


def test_images_without_public_examples_are_centered():
    config, federation, _ = arranged("fedavg")
    outputs = [
        make_algorithm(config, "dp_fedavg", federation.with_partition(federation.partition)),
        make_algorithm(config, "dp_fedavg", replace(federation, public=federation.test)),
    ]
    found = [made.predict(started(made, federation), federation.x[:50]) for made in outputs]
    assert not np.array_equal(*found)


@pytest.mark.parametrize("name", PRIVATE)
def test_medians_of_gaps_are_refused_for_private_methods(name, tmp_path):
    rng = np.random.default_rng(0)
    lines = ["a,b,kind,label"] + [
        f"{rng.normal():.3f},{'' if i % 7 == 0 else rng.normal():{'' if i % 7 == 0 else '.3f'}},"
        f"{'xy'[i % 2]},{i % 3}"
        for i in range(300)
    ]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    own = (f"dataset.name={path}", "model.name=mlp", "preprocessing.kind=identity")
    config = config_of(name, *own, "federation.num_labeled=0", "federation.labeled_fraction=0.5")
    with pytest.raises(
        UsageError, match=r"^config\.dataset\.name=.*exact medians.*; fill missing values"
    ):
        Simulation(config)
