"""What federations, the simulated clock and execution refuse."""

from functools import partial

import numpy as np
import refusals

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock import Asynchronous, Clock, schedule_of
from jaxfed.federation.method import with_attributes
from jaxfed.federation.rounds import Sampling

X, Y = np.arange(5, dtype=np.float32)[:, None], np.arange(5) % 3
PAIR, NO_LABELS = (X, Y), np.full(5, -1)


def made(*clients, **given):
    return partial(Federation.from_clients, clients or [PAIR], **given)


def like(examples):
    return lambda: made()().examples_like_these(examples, "here")


DATA = {
    "...left_out_client=1": lambda: made()().leave_out(1),
    "...public_labeled=True: every public example needs": made(public_labeled=True),
    "...public_labeled=True: every public": made(public=(X, NO_LABELS), public_labeled=True),
    "...clients[0] is ndarray; use a pair": made(X),
    "from_clients...labels are lists of unequal lengths; use": made(([[1.0], [2.0]], [[0], 1])),
    "from_clients...the highest label is 0; use labels 0..C-1": made(([[1.0]], [0])),
    "...every example of the server needs its label": made(server=(X[:1], [-1])),
    "here: examples are lists of unequal lengths; use an": like([[1.0], [1.0, 2.0]]),
    "here: examples are an array [3, 2]; use [n, 1]": like(np.zeros((3, 2))),
}


def sized(*sizes):
    return made(*((np.zeros((n, 2)), [0] * n) for n in sizes), num_classes=2)()


def labeled(*numbers):
    """Clients with these numbers of labels, each beside an example without."""
    clients = ((np.zeros((n + 1, 2)), [0] * n + [-1]) for n in numbers)
    return made(*clients, num_classes=2)()


SIX = sized(1, 2, 3, 4, 5, 6)


def rounds(federation=SIX, size=0, at_once=0, sampling="uniform", labels=False, own=len, **clock):
    """Three rounds in simulated time."""

    def call():
        asynchronous = Asynchronous(at_once, len, (None, own)) if at_once else None
        needs = {"needs_labels_in": lambda number: labels}
        played = with_attributes(len, asynchronous=asynchronous, **needs)
        method = FederatedAlgorithm(None, played, None)
        given = Clock(**{"seconds_per_example": 1.0} | clock)
        schedule_of(given, method, federation, Sampling(size, sampling), 5, 3)

    return call


BY_LABELS = partial(rounds, labels=True)
CLOCK = {
    "sampling='groups': concurrency=4 replaces": rounds(SIX, 3, 4, "groups"),
    "concurrency=2: the server's step takes 3 arrivals, and 6 clients have examples to train on; use 3 to "
    "6, or a smaller cohort_size": rounds(SIX, 3, 2),
    "concurrency=4: ...and 2 clients have": BY_LABELS(labeled(0, 2, 0, 3), 3, 4),
    "asynchronous rounds of this method would leave out": rounds(SIX, 3, 4, own=max),
    "Clock.seconds_per_example=0.0: the rounds of this method are asynchronous": rounds(
        at_once=4, seconds_per_example=0.0
    ),
}


test_refused = refusals.table(DATA | CLOCK)
