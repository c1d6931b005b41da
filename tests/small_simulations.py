"""Simulations of a few numbered examples: what tests of dealing share."""

import numpy as np

from jaxfed.config import base
from jaxfed.config.data.simulation import Simulation
from jaxfed.experiment.run.loop import first_repeat


def simulation(tmp_path, num_test, *, sizes=(60, 60, 60), num_unlabeled=0, sites=False, **keys):
    """Examples that are their own numbers, those without a label last, then the test split.

    `sizes` are those of the classes in the training split; with `sites` each example has one of four.
    """
    y = np.concatenate([np.repeat(np.arange(3), sizes), np.full(num_unlabeled, -1)])
    x = np.arange(len(y) + num_test, dtype=np.float32)[:, None]
    splits = {"x": x[: len(y)], "y": y}
    if num_test:
        splits |= {"x_test": x[len(y) :], "y_test": np.arange(num_test) % 3}
    if sites:
        splits |= {"site": np.arange(len(y)) % 4, "site_test": np.arange(num_test) % 4}
    np.savez(tmp_path / "set.npz", **splits)
    config = base.get_config()
    config.dataset.name = str(tmp_path / "set.npz")
    config.federation.num_clients = 4
    with config.unlocked():
        config.update_from_flattened_dict(keys)
    return Simulation(config)


def prepared(config):
    """The clients and methods that a run makes before its workdir."""
    simulation = Simulation(config)
    simulation.warn()
    return first_repeat(config, simulation)


def classes_of(federation, indices):
    return np.bincount(federation.y[indices], minlength=3)
