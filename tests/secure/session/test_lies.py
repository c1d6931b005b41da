"""What parties that do not follow a protocol send, sealed as it should be: refused, or taken for true.

Payloads of a wrong length are refused at every step of every protocol, whatever the party. So are
values that nothing can be; those that could be are the sender's own affair (parties are assumed to
follow the protocol), but never end in anything else than a result or one `ProtocolError`.
"""

import re
from typing import NamedTuple

import numpy as np
import pytest

from jaxfed.errors import ProtocolError
from jaxfed.secure import cross_steps
from jaxfed.secure.hamming import protocols
from jaxfed.secure.primitives import paillier
from jaxfed.secure.row_sums.masked import start_message as started
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session

KEY_BITS = 128
KEY = paillier.generate_key(KEY_BITS, insecure=True)
NUM_BITS = 32


class Liar:
    """An endpoint that says something else in one of its messages."""

    def __init__(self, endpoint, lie):
        self._endpoint, self._lie = endpoint, lie

    def __getattr__(self, name):
        return getattr(self._endpoint, name)

    def send(self, receiver, kind, payload):
        route = self._endpoint.address, receiver
        self._endpoint.send(receiver, kind, self._lie(kind, bytes(payload), route))


class Lost(NamedTuple):
    """Clients whose message the server refused, and the result of the others."""

    clients: set[int]
    result: object


class Lies:
    """Counts the messages of a run, and changes one of them."""

    def __init__(self, number=-1, change=None):
        self.number, self.change = number, change
        self.kinds, self.routes = [], []

    def __call__(self, kind, payload, route=None):
        self.kinds.append(kind)
        self.routes.append(route)
        if len(self.kinds) - 1 == self.number:
            return self.change(payload)
        return payload


def hamming(protocol):
    rng = np.random.default_rng(0)
    codes = {j: rng.integers(0, 2**32, (2, 1), dtype=np.uint32) for j in range(2)}

    def run(session):
        return cross_steps.nearest_others(
            session, codes, 2, getattr(protocols, protocol), key_bits=KEY_BITS
        )

    return run


def sums(**options):
    rng = np.random.default_rng(0)
    contributions = {j: rng.normal(size=(4, 2)) for j in range(3)}
    rows = {0: slice(0, 2), 1: slice(2, 3), 2: slice(3, 4)}

    def run(session):
        return cross_steps.sums_of_rows(session, contributions, rows, **options)

    return run


STEPS = {
    **{name: (hamming(name), 2) for name in ("masked", "ot", "phe")},
    "row sums": (sums(), 3),
    "row sums, resilient": (sums(resilient=True), 3),
    "row sums, signed": (sums(resilient=True, signed=True), 3),
}


def lied(step, lies):
    """The outcome of a run in which one message says something else."""
    run, num_clients = STEPS[step]
    session = Session(num_clients)
    session.endpoints = {a: Liar(end, lies) for a, end in session.endpoints.items()}
    result = run(session)
    if session.presence.gone:  # the server refused the message, and goes on without its sender
        return Lost(session.presence.gone, result)
    return result


def steps_of(step):
    """Numbers of the messages of an honest run, the first and the last of every kind."""
    lies = Lies()
    lied(step, lies)
    last = {kind: number for number, kind in enumerate(lies.kinds)}
    first = {kind: number for number, kind in reversed(list(enumerate(lies.kinds)))}
    return sorted({*first.values(), *last.values()})


def outcome(step, lies):
    """What comes out: a result, or the error. Any other exception is a test's failure."""
    try:
        return lied(step, lies)
    except ProtocolError as error:
        return error


@pytest.fixture(autouse=True)
def small_key(monkeypatch):
    monkeypatch.setattr(paillier, "generate_key", lambda bits: KEY)


@pytest.mark.parametrize("step", STEPS)
def test_payloads_of_a_wrong_length_are_refused(step):
    """By an error, or the server loses the client that sent it."""
    longer = (lambda p: p + b"\0", lambda p: p + p + b"12345678")
    shorter = (lambda p: p[:-1], lambda p: b"", lambda p: p[: len(p) // 2])
    for number in steps_of(step):
        for change in (*longer, *shorter):
            lies = Lies(number, change)
            what = outcome(step, lies)
            sender, receiver = lies.routes[number]
            if isinstance(what, ProtocolError):
                assert "\n" not in str(what)
                assert receiver != SERVER or step in ("ot", "phe")
            else:
                assert (what.clients, receiver) == ({sender}, SERVER)
                assert sender not in getattr(what.result, "clients", what.result)


@pytest.mark.parametrize(
    ("step", "kind", "payload", "about"),
    [
        ("masked", "own", b"\xff" * 12, "padding|above 32"),
        ("ot", "response", b"\xff" * 32, "edwards25519"),
        ("ot", "response", bytes(32), "edwards25519"),
        ("ot", "request", bytes(32 * 128), "edwards25519"),
        ("ot", "first_sums", b"\xff\x7f" * 4, "above 32"),
        ("phe", "key", b"\xff" * (3 * KEY_BITS // 8), r"\[1, N\^2\)"),
        ("phe", "key", bytes(3 * KEY_BITS // 8), "modulus"),
        ("phe", "points", bytes(NUM_BITS * KEY_BITS // 4), r"\[1, N\^2\)"),
        ("phe", "points", b"\xff" * (NUM_BITS * KEY_BITS // 4), r"\[1, N\^2\)"),
        ("phe", "answers", bytes(2 * KEY_BITS // 4), r"\[1, N\^2\)"),
        ("phe", "opened", b"\xff" * (2 * KEY_BITS // 8), r"\[0, N\)"),
        *(("row sums", "start", started(0, p), "ascending") for p in ([0, 0, 1], [1, 0])),
        *(("row sums", "start", started(0, p), "not what was agreed") for p in ([1, 2], [0, 7])),
        (
            "row sums, resilient",
            "start",
            b"\0" * 8 + b"\0\0\0\0\1\0\0\0\2\0\0\0\1\0\0\0",
            "threshold",
        ),
        ("row sums, resilient", "mask_keys", bytes(96), "small order"),
        ("row sums, resilient", "mask_keys", b"\xff" * 96, "field"),
        *(
            ("row sums, resilient", "survivors", started(n, p), "not of this round, or too few")
            for n, p in ((0, [1, 2]), (0, [0]), (0, [0, 1, 2, 9]), (1, [0, 1, 2]))
        ),
        ("row sums, resilient", "shares", b"\xff" * 198, "field|one secret"),
        ("row sums, signed", "signature", bytes(64), "has not signed"),
        ("row sums, signed", "signatures", bytes(68 * 3), "ascending"),
        ("row sums, signed", "signatures", bytes(68 * 1), "1 signatures"),
    ],
)
def test_values_that_nothing_can_be_are_refused(step, kind, payload, about, caplog):
    lies = Lies()
    lied(step, lies)
    number = next(i for i, sent in enumerate(lies.kinds) if sent.split("/")[0] == kind)

    what = outcome(step, Lies(number, lambda honest: payload))
    error = caplog.text if isinstance(what, Lost) else str(what)
    assert re.search(about, error)
