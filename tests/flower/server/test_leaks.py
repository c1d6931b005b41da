"""What leaves a client in a whole run: all bytes that the server receives, searched for the client's data."""

import contextlib
from functools import partial

import numpy as np
import pytest
from leak_search import LABELS, Listener, Private, has_one, leaks, needles
from network_deployment import METHODS, Deployment, config_of
from on_demand import on_demand

from jaxfed.errors import UsageError
from jaxfed.flower.client import client_data, client_run
from jaxfed.flower.server.exchange import TooFewClients
from jaxfed.secure.hamming.pair import bits_of
from jaxfed.xclp import network

AT_ONCE = ("fedavg",)
# Counts or shares of classes are messages of these methods, and in their tables' column of what leaves.
COUNTS = {"counts of labels, float32", "counts of given labels, float32"}
SEND_COUNTS = ("proxyfl", "cbafed")


def private_of(folder, num_classes=10):
    data = client_data.read(folder)
    texts = {"the folder's name": str(folder).encode()}
    return Private(data.train.x, data.train.y, num_classes, texts)


def listened(there):
    """A deployment whose clients' bytes are recorded."""
    network = there.network
    network.clients = {node: Listener(serve) for node, serve in network.clients.items()}
    return network.clients


@pytest.fixture(autouse=True)
def codes(monkeypatch):
    """All codes that clients of XCLP compute in a run."""
    found, real = [], network.client_codes

    def spied(vectors, planes):
        found.extend(own := real(vectors, planes))
        return own

    monkeypatch.setattr(network, "client_codes", spied)
    return found


def found_in_a_run(there, stops=contextlib.nullcontext, codes=()):
    """{client: what of its data is in the bytes that anybody received, in either direction}."""
    listeners = listened(there)
    with stops():
        there.serve()
    everything = b"".join(b"".join(each.sent + each.received) for each in listeners.values())
    assert len(everything) > 10_000
    found = {}
    bits = {"codes": np.unique(np.concatenate(codes), axis=0)} if codes else {}
    for client, folder in enumerate(there.folders):
        private = private_of(folder)._replace(**bits)
        found[client] = leaks(everything, private)
    return found


@pytest.mark.parametrize("case", on_demand(METHODS, at_once=AT_ONCE))
def test_nothing_of_the_examples_leaves(tmp_path, codes, case):
    name, settings = METHODS[case]
    there = Deployment(tmp_path, config_of(name, "dataset.train_size=90", *settings))
    leaked = found_in_a_run(there, codes=codes)
    assert bool(codes) == ("xclp" in name)
    said = COUNTS if name in SEND_COUNTS else set()
    assert any(leaked.values()) == bool(said)
    assert {kind for kinds in leaked.values() for kind in kinds} <= said
    assert leaked.keys() == {0, 1, 2}


def row(data):
    return {"planted": data.train.x[0].astype(np.float64)}


def labels(data):
    return {"planted": data.train.y.astype(np.int8)}


def counts(data):
    y = data.train.y
    return {"planted": np.bincount(y[y >= 0], minlength=10).astype(np.float32)}


def place(data):
    return {"planted": str(data.folder)}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("step", "planted"),
    [
        ("_register", row),
        pytest.param("_register", counts, marks=pytest.mark.slow),
        ("_step", labels),
        pytest.param("_step", place, marks=pytest.mark.slow),
    ],
)
def test_a_planted_leak_is_found(tmp_path, monkeypatch, step, planted):
    """In the registration and in a reply, both of which a server refuses."""
    real = getattr(client_run, step)

    def leaking(data, *arguments):
        reply = real(data, *arguments)
        if step == "_register":
            return reply | planted(data)
        state, content = reply
        return state, content | {f"seconds.{k}": v for k, v in planted(data).items()}

    monkeypatch.setattr(client_run, step, leaking)
    stops = partial(pytest.raises, TooFewClients, match="seconds.planted is unexpected")
    if step == "_register":
        stops = partial(pytest.raises, UsageError, match="registration is malformed")
    there = Deployment(tmp_path, config_of("fedavg", "rounds=1", "dataset.train_size=90"))
    found = found_in_a_run(there, stops)
    assert any(found.values()), found  # a client of one class has no labels to be recognized by


RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 256, (40, 8, 8, 1)).astype(np.uint8)
Y = RNG.integers(-1, 6, 40)
CODES = RNG.integers(0, 2**32, (5, 8), dtype=np.uint32)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("x", [IMAGES, IMAGES / 7, RNG.normal(size=(40, 9)).astype(np.float32)])
def test_every_encoding_is_found_and_nothing_else(x):
    private = Private(x, Y, 6, {"secret": b"open sesame"}, np.r_[CODES, np.zeros_like(CODES)])
    noise = RNG.bytes(200_000) + RNG.normal(size=20_000).astype(np.float32).tobytes()
    noise += np.zeros(5000).tobytes() + np.arange(2000).tobytes()
    assert leaks(noise, private) == []
    known = needles(private)
    assert {f"one-hot labels, {kind}" for kind in LABELS} <= known.keys()
    rows = CODES[3].tobytes(), (bits_of(CODES)[3].astype(np.float32) * 2 - 1).tobytes()
    assert [leaks(noise + row, private) for row in rows] == [
        ["codes, words"],
        ["signs of codes, float32"],
    ]
    for name, some in known.items():
        for at in {0, len(some) // 2}:
            content = noise[-999:] + b"\1" + sorted(some)[at] + noise[:999]
            assert has_one(content, some), name
