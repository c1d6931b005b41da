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
import json
import math
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import numpy as np

import jaxfed
from jaxfed.federation.census import ClientCounts, FeatureSums, counts_of
from jaxfed.flower.client import client_step
from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import BadMessage, Record, Value
from jaxfed.flower.messages.steps import one_line

NAME = "hello"  # of the step

_MOST_AXES = 8
_LONGEST_COLUMNS = 10_000_000  # characters of all names
_MOST_STEPS = 2**53  # the server counts on from the largest number that a client says


class Census(NamedTuple):
    """Counts of a client's data.

    Attributes:
        examples: number of training examples.
        labeled: examples with a label.
        shape: of one example.
        dtype: of the examples.
        total: the sum of each entry of the last axis, over examples and all other axes; () if it is not sent.
        square: the sum of squares, likewise.
    """

    examples: int
    labeled: int
    shape: tuple[int, ...]
    dtype: str
    total: tuple[float, ...]
    square: tuple[float, ...]

    @property
    def counts(self) -> ClientCounts:
        """The numbers that a round's computations depend on."""
        if not self.total:
            return ClientCounts(self.examples, self.labeled, None)
        values = self.examples * math.prod(self.shape[:-1])
        sums = FeatureSums(np.array(self.total), np.array(self.square), values)
        return ClientCounts(self.examples, self.labeled, sums)


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
        last_step: number of the last step of this run that it has served; 0: none.
        last_round: the round of that step.
        census: counts.
        columns: names of the columns of its examples; () if it has none.
    """

    client: int
    name: str
    jaxfed: str
    jax: str
    config: str
    data: str
    public: str
    last_step: int
    last_round: int
    census: Census
    columns: tuple[str, ...] = ()


def census_of(x: np.ndarray, y: np.ndarray, *, sums: bool = True) -> Census:
    """Count examples [n, ...] and labels int [n], -1 for unlabeled; `sums`: sum the features."""
    counts = counts_of(x, y[y >= 0], sums=sums)
    total, square = ((), ()) if counts.sums is None else counts.sums[:2]
    return Census(
        examples=counts.examples,
        labeled=counts.labels,
        shape=tuple(int(size) for size in x.shape[1:]),
        dtype=x.dtype.name,
        total=tuple(map(float, total)),
        square=tuple(map(float, square)),
    )


def checksum(arrays: Mapping[str, np.ndarray], key: bytes = b"") -> str:
    """SHA-256 of named arrays with their types and shapes, keyed if a key is given."""
    return hashlib.sha256(key + records.fingerprint(dict(arrays)).encode()).hexdigest()


def hello(
    folder: Path,
    run: str,
    *,
    client: int,
    name: str,
    config: str,
    x: np.ndarray,
    y: np.ndarray,
    public: np.ndarray | None = None,
    sums: bool = True,
    columns: tuple[str, ...] = (),
) -> Hello:
    """Collect a client's first reply.

    Args:
        folder: the client's folder.
        run: name of the run.
        client: its number.
        name: its name.
        config: hash of the config as the client resolved it.
        x: examples [n, ...].
        y: labels int [n], -1 for unlabeled.
        public: public examples.
        sums: True if the method needs the sums of features.
        columns: names of the columns of x.

    Raises:
        client_step.StepRefused: another process is serving a step, or files of the run are damaged.
    """
    last = client_step.last_step(folder, run)
    return Hello(
        client=client,
        name=name,
        jaxfed=jaxfed.__version__,
        jax=metadata.version("jax"),
        config=config,
        data=checksum({"x": x, "y": y}, client_step.secret(folder)),
        public="" if public is None else checksum({"x": public}),
        last_step=0 if last is None else last.number,
        last_round=0 if last is None else last.round,
        census=census_of(x, y, sums=sums),
        columns=columns,
    )


def check_unchanged(said: Mapping[str, Value], folder: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Compare what a client said in its hello with what it has now.

    Raises:
        client_step.StepRefused: its jaxfed or its data have changed since.
        BadMessage: the server does not say what it said.
    """
    version = records.text(said, "jaxfed", longest=100)
    if version != jaxfed.__version__:
        raise client_step.StepRefused(
            f"this client has jaxfed {jaxfed.__version__}, and the server {one_line(version)}"
        )
    data = records.text(said, "data", longest=100)
    if data != checksum({"x": x, "y": y}, client_step.stored_secret(folder)):
        raise client_step.StepRefused("this client's data are not those of its hello")


def to_record(said: Hello) -> Record:
    """Convert a hello to the content of a reply."""
    fields = said._asdict() | {"columns": json.dumps(said.columns)}
    head: dict[str, Value] = {name: value for name, value in fields.items() if name != "census"}
    arrays: dict[str, Value] = {"shape": np.asarray(said.census.shape, np.int64)}
    for name in ("total", "square"):
        arrays[name] = np.array(getattr(said.census, name), np.float64)
    census = said.census._asdict() | arrays
    return head | records.prefixed(census, "census")


def from_record(content: Mapping[str, Value]) -> Hello:
    """Read a hello from the content of a reply.

    Raises:
        BadMessage: it is malformed, or its counts contradict each other.
    """
    counts = records.part(content, "census")
    shape = counts.get("shape")
    if (
        not isinstance(shape, np.ndarray)
        or shape.dtype != np.int64
        or shape.ndim != 1
        or len(shape) > _MOST_AXES
        or (shape < 1).any()
    ):
        raise BadMessage("census.shape is not the shape of an example")
    census = Census(
        examples=records.whole_number(counts, "examples"),
        labeled=records.whole_number(counts, "labeled"),
        shape=tuple(shape.tolist()),
        dtype=records.text(counts, "dtype", longest=20),
        total=_sums(counts, "total", shape),
        square=_sums(counts, "square", shape),
    )
    if census.labeled > census.examples:
        raise BadMessage("the counts of a census contradict each other")
    if bool(census.total) != bool(census.square):
        raise BadMessage("census.total and census.square belong together")
    return Hello(
        client=records.whole_number(content, "client"),
        name=records.text(content, "name"),
        jaxfed=records.text(content, "jaxfed", longest=100),
        jax=records.text(content, "jax", longest=100),
        config=records.text(content, "config", longest=100),
        data=records.text(content, "data", longest=100),
        public=records.text(content, "public", longest=100),
        last_step=records.whole_number(content, "last_step", most=_MOST_STEPS),
        last_round=records.whole_number(content, "last_round", most=_MOST_STEPS),
        census=census,
        columns=_columns(records.text(content, "columns", longest=_LONGEST_COLUMNS), shape),
    )


def _columns(text: str, shape: np.ndarray) -> tuple[str, ...]:
    """Names of the columns of examples.

    Raises:
        BadMessage: the text is not a list of names, one for each column.
    """
    try:
        columns = json.loads(text)
    except ValueError:
        columns = None
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise BadMessage("columns is not a list of texts")
    if columns and [len(columns)] != shape[-1:].tolist():
        raise BadMessage(f"columns has {len(columns)} names of {shape[-1:].tolist()} columns")
    return tuple(columns)


def _sums(counts: Mapping[str, Value], name: str, shape: np.ndarray) -> tuple[float, ...]:
    """Sums of each feature; () if they were not sent.

    Raises:
        BadMessage: another type or shape, or numbers that are not finite.
    """
    sums = counts.get(name)
    if (
        not isinstance(sums, np.ndarray)
        or sums.dtype != np.float64
        or sums.shape not in ((*shape[-1:].tolist(),), (0,))
        or not np.isfinite(sums).all()
    ):
        raise BadMessage(f"census.{name} is not one finite sum of each feature")
    return tuple(sums.tolist())
