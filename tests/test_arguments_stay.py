"""Public functions leave what they are given as it was: configs, containers and arrays of the caller's."""

import copy
import dataclasses

import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict
from on_demand import on_demand

import jaxfed
from jaxfed import data, xclp
from jaxfed.config import file as config_file
from jaxfed.config.overrides import with_overrides
from jaxfed.kernels import knn

RNG = np.random.default_rng(0)
X = [RNG.normal(size=(12, 4)).astype(np.float32) for _ in range(3)]
Y = [np.where(np.arange(12) < 6, np.arange(12) % 2, -1) for _ in range(3)]
CODES = RNG.integers(0, 2**32, (9, 2), dtype=np.uint32)
MODEL = jaxfed.from_flax(lambda rngs: nnx.Linear(4, 2, rngs=rngs), (4,))


def own_config():
    config = config_file.shipped("xclp_digits").get_config("smoke")
    config.num_repeats, config.baselines = 1, ("client_knn",)
    return config


def federation():
    return jaxfed.Federation.from_clients(list(zip(X, Y, strict=True)), test=(X[0], abs(Y[0])))


def simulate(clients, training):
    jaxfed.simulate(jaxfed.algorithms.fedavg(training=training), clients, rounds=2, cohort_size=2)


CALLS = {
    "jaxfed.run": (
        lambda config, select: jaxfed.run(
            config, progress=False, xclp__alpha=0.5, xclp__select=select
        ),
        (own_config(), ["client_prior"]),
    ),
    "with_overrides": (with_overrides, (own_config(), ["xclp.alpha=0.5", "seed=3"])),
    "Federation.from_clients": (
        lambda clients, new, test, public, server: jaxfed.Federation.from_clients(
            clients, new=new, test=test, public=public, server=server, num_classes=2
        ),
        (
            [list(pair) for pair in zip(X, Y, strict=True)],
            [list(pair) for pair in zip(X, Y, strict=True)],
            [X[0], abs(Y[0])],
            X[1],
            [X[2], abs(Y[2])],
        ),
    ),
    "simulate": (simulate, (federation(), jaxfed.Training(MODEL))),
    "propagate_labels": (
        lambda vectors, labels, **keywords: xclp.propagate_labels(
            vectors, labels, num_classes=2, num_bits=64, num_neighbors=3, **keywords
        ),
        (X, Y),
    ),
    "Labeling.label": (
        lambda vectors, labels, later: xclp.propagate_labels(
            vectors, labels, num_classes=2, num_bits=64
        ).label(later),
        (X, Y, X),
    ),
    "partition": (
        lambda y, table, new_y: data.partition(
            y,
            num_clients=2,
            scheme=data.Table(table),
            labels=data.Labels(per_class=2),
            new_y=new_y,
            seed=0,
        ),
        (np.arange(60) % 3, [[1, 2, 1], [2, 1, 1]], np.arange(30) % 3),
    ),
    "hamming_knn": (lambda codes: knn.hamming_knn(codes, 3), (CODES,)),
}


def snapshot(value):
    """All that is in a container, arrays as their bytes."""
    if isinstance(value, ConfigDict):
        return value.is_locked, value.to_json_best_effort(sort_keys=True)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return type(value), [snapshot(entry) for entry in value]
    if isinstance(value, dict):
        return {key: snapshot(entry) for key, entry in value.items()}
    if isinstance(value, jaxfed.Federation):
        return [snapshot(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return id(value)


@pytest.mark.parametrize(
    "name", on_demand(CALLS, at_once=["with_overrides", "Labeling.label", "hamming_knn"])
)
def test_what_a_caller_gives_is_as_it_was(name):
    call, arguments = CALLS[name]
    given = [copy.deepcopy(a) if isinstance(a, ConfigDict) else a for a in arguments]
    before = snapshot(given)
    call(*given)
    assert snapshot(given) == before
