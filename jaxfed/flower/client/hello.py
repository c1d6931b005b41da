"""A client's first reply: its number, and what the server must know of its data.

A hello contains nothing of a client's data but the numbers of its examples and labels, on which the number of
steps, shapes and weights of a round depend. The client itself compares the form of its examples, the names
of their columns and its public examples with those of the run.

If a method's networks normalize their inputs by all clients' data, the sum and the sum of squares of each
feature (of each channel of images) leave as well. They are sums in the clear: of one example they are the
example. A client with fewer examples than `least_examples` in its client.toml refuses such a method in one
line, since a normalization without it would be another one than the simulation's. The floor does not help
against a server that compares the sums before and after a site has added an example: their difference is
that example.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxfed.federation.census import ClientCounts, counts_of
from jaxfed.flower.client.client_data import ClientData
from jaxfed.flower.client.client_step import StepRefused
from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import BadMessage, Value, one_line
from jaxfed.flower.messages.setup import Form

NAME = "hello"  # of the step


class Hello(NamedTuple):
    """A client's first reply.

    Attributes:
        client: its number.
        name: its name in client.toml.
        counts: numbers of its examples and labels, with sums of features if the method needs them.
    """

    client: int
    name: str
    counts: ClientCounts


def hello(data: ClientData, form: Form, *, sums: bool) -> Hello:
    """Collect a client's first reply; `StepRefused` if its examples have another form."""
    x, y = data.points
    own = Form(x.dtype.name, x.shape[1:], data.columns, form.public and checksum(data.public))
    for what, here, there in zip(Form._fields, own, form, strict=True):
        if here != there:
            order = " in another order" * (what == "columns" and sorted(here) == sorted(there))
            shown = one_line(f"{here}{order}, not {there}")
            raise StepRefused(f"{data.settings.name} has examples of {what} {shown}")
    least = data.settings.least_examples
    if sums and 0 < len(y) < least:
        raise StepRefused(
            "the method needs sums of features, and there are fewer examples than the "
            f"least_examples = {least} of client.toml"
        )
    return Hello(data.settings.number, data.settings.name, counts_of(x, y[y >= 0], sums=sums))


def checksum(x: np.ndarray | None) -> str:
    """SHA-256 of public examples; "" without them."""
    return "" if x is None else records.fingerprint({"x": x})


def from_record(content: Mapping[str, Value], shape: Sequence[int]) -> Hello:
    """Read a hello from the content of a reply; `shape` is that of an example."""
    said = records.unpacked(Hello, content)
    examples, labels, sums = said.counts
    if not 0 <= said.client < 2**53 or not 0 <= labels <= examples < 2**53:
        raise BadMessage("the numbers of a hello are too large, or contradict each other")
    if sums is not None:
        both = sums.total, sums.square
        if {each.shape for each in both} != {(shape[-1],)}:
            raise BadMessage("the sums of a hello are not one of each feature")
        if not np.isfinite(both).all() or sums.values != examples * math.prod(shape[:-1]):
            raise BadMessage("the sums of a hello are not finite, or of another number of values")
    return said
