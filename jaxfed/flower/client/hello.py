"""A client's first reply: its versions, its number, and what the server must know of its data.

A hello contains nothing of a client's data but the numbers of its examples and labels, the shape and type of
its examples, and the names of their columns. The number of steps, shapes and weights of a round depend on the
numbers. By the names the server finds a site whose columns have another order.

If a method's networks normalize their inputs by all clients' data, the sum and the sum of squares of each
feature (of each channel of images) leave as well. They are sums in the clear: of one example they are the
example. A client with fewer examples than `least_examples` in its client.toml refuses such a method in one
line, since a normalization without it would be another one than the simulation's. The floor does not help
against a server that compares the sums before and after a site has added an example: their difference is
that example.

Two checksums come with them. The one of the client's data is keyed with a secret of its folder: it tells the
server only whether the data has changed since the last hello, and cannot be compared with data that a server
suspects to be there. The one of public examples is meant to be compared.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from importlib import metadata
from typing import NamedTuple

import numpy as np

import jaxfed
from jaxfed.federation.census import ClientCounts, counts_of
from jaxfed.flower.client import client_step
from jaxfed.flower.client.client_data import ClientData
from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import BadMessage, Value, one_line
from jaxfed.flower.messages.setup import Setup

NAME = "hello"  # of the step


class Hello(NamedTuple):
    """A client's first reply.

    Attributes:
        client: its number.
        name: its name in client.toml.
        jaxfed: version.
        jax: version.
        config: hash of the config as the client resolved it.
        data: keyed checksum of its data.
        public: checksum of its public examples; "" if it has none.
        columns: names of the columns of its examples; () if it has none.
        dtype: type of an example.
        shape: shape of an example.
        counts: numbers of its examples and labels, with sums of features if the method needs them.
    """

    client: int
    name: str
    jaxfed: str
    jax: str
    config: str
    data: str
    public: str
    columns: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    counts: ClientCounts


def checksum(arrays: Mapping[str, np.ndarray], key: bytes = b"") -> str:
    """SHA-256 of named arrays with their types and shapes, keyed if a key is given."""
    return hashlib.sha256(key + records.fingerprint(dict(arrays)).encode()).hexdigest()


def hello(data: ClientData, *, config: str, sums: bool = True) -> Hello:
    """Collect a client's first reply."""
    x, y = data.points
    return Hello(
        client=data.settings.number,
        name=data.settings.name,
        jaxfed=jaxfed.__version__,
        jax=metadata.version("jax"),
        config=config,
        data=checksum({"x": x, "y": y}, client_step.secret(data.folder)),
        public="" if data.public is None else checksum({"x": data.public}),
        columns=data.columns,
        dtype=x.dtype.name,
        shape=x.shape[1:],
        counts=counts_of(x, y[y >= 0], sums=sums),
    )


def check_unchanged(told: Setup, data: ClientData) -> None:
    """Compare what a client said in its hello with what it has now."""
    if told.jaxfed != jaxfed.__version__:
        theirs = one_line(told.jaxfed)
        raise client_step.StepRefused(
            f"this client has jaxfed {jaxfed.__version__}, and the server {theirs}"
        )
    own = dict(zip("xy", data.points, strict=True))
    if told.data != checksum(own, client_step.stored_secret(data.folder)):
        raise client_step.StepRefused("this client's data are not those of its hello")


def from_record(content: Mapping[str, Value]) -> Hello:
    """Read a hello from the content of a reply."""
    said = records.unpacked(Hello, content)
    examples, labels, sums = said.counts
    if not 0 <= said.client < 2**53 or not 0 <= labels <= examples < 2**53:
        raise BadMessage("the numbers of a hello are too large, or contradict each other")
    if not said.shape or min(said.shape) < 1 or len(said.columns) not in (0, said.shape[-1]):
        raise BadMessage("the hello has no shape of an example, or not a name of each column")
    if sums is not None:
        both, values = (sums.total, sums.square), examples * math.prod(said.shape[:-1])
        if {each.shape for each in both} != {said.shape[-1:]} or sums.values != values:
            raise BadMessage("the sums of a hello are not one of each feature")
        if not np.isfinite(both).all():
            raise BadMessage("the sums of a hello are not finite")
    return said
