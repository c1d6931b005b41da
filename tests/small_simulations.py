"""Simulations of a few numbered examples: what tests of dealing share."""

import numpy as np

from jaxfed.config import base
from jaxfed.config.data.simulation import Simulation


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
