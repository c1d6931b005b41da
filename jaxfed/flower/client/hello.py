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
from typing import Any, NamedTuple

import numpy as np

import jaxfed
from jaxfed.federation.census import ClientCounts, FeatureSums, counts_of
from jaxfed.flower.client import client_step
from jaxfed.flower.client.client_data import ClientData
from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import BadMessage, Record, Value
from jaxfed.flower.messages.steps import one_line

NAME = "hello"  # of the step

_MOST_AXES = 8
_LONGEST_COLUMNS = 10_000_000  # characters of all names
_MOST_STEPS = 2**53  # the server counts on from the largest number that a client says
_LONGEST = 100  # characters of a version or a hash


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
        columns: names of the columns of its examples; () if it has none.
        example: type and sizes of an example.
        counts: numbers of its examples and labels, with sums of features if the method needs them.
    """

    client: int
    name: str
    jaxfed: str
    jax: str
    config: str
    data: str
    public: str
    last_step: int
    columns: tuple[str, ...]
    example: tuple[Any, ...]
    counts: ClientCounts

    def to_record(self) -> Record:
        """Convert it to the content of a reply."""
        head = self._asdict() | {"columns": json.dumps(self.columns)}
        counts, example = head.pop("counts"), head.pop("example")
        total, square, _ = counts.sums or (np.zeros(0), np.zeros(0), 0)
        census: Record = {
            "examples": counts.examples,
            "labeled": counts.labels,
            "shape": np.array(example[1:], np.int64),
            "dtype": example[0],
            "total": total,
            "square": square,
        }
        return head | records.prefixed(census, "census")


def checksum(arrays: Mapping[str, np.ndarray], key: bytes = b"") -> str:
    """SHA-256 of named arrays with their types and shapes, keyed if a key is given."""
    return hashlib.sha256(key + records.fingerprint(dict(arrays)).encode()).hexdigest()


def hello(data: ClientData, run: str, *, config: str, sums: bool = True) -> Hello:
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
        last_step=client_step.last_step(data.folder, run),
        columns=data.columns,
        example=(x.dtype.name, *x.shape[1:]),
        counts=counts_of(x, y[y >= 0], sums=sums),
    )


def check_unchanged(said: Mapping[str, Value], data: ClientData) -> None:
    """Compare what a client said in its hello with what it has now."""
    version = records.text(said, "jaxfed", longest=_LONGEST)
    if version != jaxfed.__version__:
        raise client_step.StepRefused(
            f"this client has jaxfed {jaxfed.__version__}, and the server {one_line(version)}"
        )
    own = dict(zip("xy", data.points, strict=True))
    known = records.text(said, "data", longest=_LONGEST)
    if known != checksum(own, client_step.stored_secret(data.folder)):
        raise client_step.StepRefused("this client's data are not those of its hello")


def from_record(content: Mapping[str, Value]) -> Hello:
    """Read a hello from the content of a reply."""
    census = records.part(content, "census")
    sizes = _array(census, "shape", np.int64)
    if len(sizes) > _MOST_AXES or (sizes < 1).any():
        raise BadMessage("census.shape is not the shape of an example")
    shape = tuple(sizes.tolist())
    examples, labeled = (records.whole_number(census, name) for name in ("examples", "labeled"))
    if labeled > examples:
        raise BadMessage("the counts of a census contradict each other")
    total, square = (_array(census, name, np.float64) for name in ("total", "square"))
    for sums in (total, square):
        if len(sums) != len(total) or sums.shape not in (shape[-1:], (0,)):
            raise BadMessage("census.total and census.square are not one sum of each feature")
        if not np.isfinite(sums).all():
            raise BadMessage("census.total and census.square are not finite")
    values = examples * math.prod(shape[:-1])
    return Hello(
        client=records.whole_number(content, "client"),
        name=records.text(content, "name"),
        jaxfed=records.text(content, "jaxfed", longest=_LONGEST),
        jax=records.text(content, "jax", longest=_LONGEST),
        config=records.text(content, "config", longest=_LONGEST),
        data=records.text(content, "data", longest=_LONGEST),
        public=records.text(content, "public", longest=_LONGEST),
        last_step=records.whole_number(content, "last_step", most=_MOST_STEPS),
        columns=_columns(records.text(content, "columns", longest=_LONGEST_COLUMNS), shape[-1:]),
        example=(records.text(census, "dtype", longest=20), *shape),
        counts=ClientCounts(
            examples, labeled, FeatureSums(total, square, values) if len(total) else None
        ),
    )


def _array(content: Mapping[str, Value], name: str, dtype: type) -> np.ndarray:
    value = content.get(name)
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != 1:
        raise BadMessage(f"census.{name} is not a list of {dtype.__name__}")
    return value


def _columns(text: str, width: tuple[int, ...]) -> tuple[str, ...]:
    """Names of the columns of examples."""
    try:
        columns = json.loads(text)
    except ValueError:
        columns = None
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise BadMessage("columns is not a list of texts")
    if columns and (len(columns),) != width:
        raise BadMessage(f"columns has {len(columns)} names of {width} columns")
    return tuple(columns)
