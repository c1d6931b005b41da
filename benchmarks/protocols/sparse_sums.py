"""Sums among neighbors (`jaxfed.secure.row_sums.double_masks`), beside Flower's SecAgg+ and all pairs.

A round is all work of all clients and the server in one process: key agreement, shares, masks, and their
removal for the clients that left before their upload. All contestants get the same vectors, the same clients
leave, and k and t are the same; ours also seals all messages. The complete graph has the double masks of
`jaxfed.secure.row_sums.double_masks`.

A client's upload is one of a thousand clients, with k for 5 % that collude and 30 % that leave: k + 1 streams
of AES over a vector of a million numbers. 0.7 s on one core is promised. `large_sums` is the whole round
of those thousand clients, 300 of which leave before their upload. 1 s a client is promised, all parties
together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.timing.contest import Contest, optional_peer, peak_memory_figure
from jaxfed.federation.communication import Communication
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.row_sums.masked_rows import masked_rows, pair_masks
from jaxfed.secure.row_sums.server_sums import server_sums
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.neighborhoods import neighborhood
from jaxfed.secure.session.parties import Session

CLIENTS, ENTRIES = 100, 20_000  # of a round; Flower's takes minutes of them
MANY, LONG = 1_000, 1_000_000  # clients, and numbers of one of them
LEAVING = 0.3  # of the many
MODEL, PART = (
    100_000,
    100,
)  # numbers of a model's update; clients of those thousand that Flower sums


def sums(with_peers: bool) -> Iterator[Contest]:
    """A whole round with 10 % that leave, and one client's upload."""
    vectors = list(np.random.default_rng(0).uniform(-1, 1, (CLIENTS, ENTRIES)))
    leaving = range(0, CLIENTS, 10)
    size, threshold = neighborhood(CLIENTS)
    peers: dict[str, Callable[[], Any]] = {"complete_graph": partial(_mean, vectors, leaving, 0)}
    if with_peers:
        peers |= optional_peer("flower_secagg_plus", _flower, vectors, leaving, size, threshold)
    yield Contest(
        task="secure sums, a round among neighbors",
        case={"n": ENTRIES, "clients": CLIENTS, "neighbors": size, "leaving": len(leaving)},
        ours=partial(_mean, vectors, leaving, size),
        peers=peers,
        agreement=_agreement,
        figures=_a_client,
        samples=1,
    )
    size, _ = neighborhood(MANY)
    values = np.random.default_rng(0).random((LONG, 1))
    seeds = {partner: partner.to_bytes(32, "little") for partner in range(1, size + 2)}
    yield Contest(
        task="secure sums, a client's upload among neighbors",
        case={"n": LONG, "clients": MANY, "neighbors": size},
        ours=partial(masked_rows, values, FixedPoint(MANY), pair_masks(0, seeds)),
        figures=lambda result, seconds: {"s a client": seconds},
        at_most={"s a client": 0.7},
    )


def large_sums(with_peers: bool) -> Iterator[Contest]:
    """A whole round of a thousand clients; all have the same vector, so that memory holds it once."""
    del with_peers
    size, _ = neighborhood(MANY)
    vector = np.random.default_rng(0).uniform(-1, 1, LONG)
    leaving = range(round(LEAVING * MANY))
    yield Contest(
        task="secure sums, a round of many among neighbors",
        case={"n": LONG, "clients": MANY, "neighbors": size, "leaving": len(leaving)},
        ours=partial(_mean, [vector] * MANY, leaving, size),
        figures=lambda mean, seconds: {
            "s a client": seconds / MANY,
            "largest error of the mean": float(np.abs(mean - vector).max()),
            **peak_memory_figure(),
        },
        at_most={"s a client": 1.0, "largest error of the mean": 1e-6},
        once=True,
    )


def model_sums(with_peers: bool) -> Iterator[Contest]:
    """Rounds of `training.sums="masked_resilient"`, all parties together, with none and 10 % that leave.

    Flower's time grows with clients times partners. Of the thousand clients it sums a hundred, each with as
    many partners as among all: a tenth of the round, in minutes. All hundreds have the same vectors, and so
    the same mean.
    """
    for clients, share in itertools.product((10, PART, MANY), (0.0, 0.1)):
        part = min(clients, PART)
        vectors = list(np.random.default_rng(0).uniform(-1, 1, (part, MODEL)))
        gone = range(round(share * part))
        leaving = [client for client in range(clients) if client % part in gone]
        size, threshold = neighborhood(clients)
        peers: dict[str, Callable[[], Any]] = {}
        if with_peers:
            peers = optional_peer("flower_secagg_plus", _flower, vectors, gone, size, threshold)
        traffic = Communication()
        yield Contest(
            task="secure sums of model updates",
            case={"n": MODEL, "clients": clients, "neighbors": size, "leaving": len(leaving)},
            ours=partial(_mean, vectors * (clients // part), leaving, size, traffic),
            peers=peers,
            parts=dict.fromkeys(peers, part / clients) if part < clients else {},
            agreement=_agreement,
            figures=partial(_of_a_client, clients, traffic),
            once=True,
        )


def _of_a_client(
    clients: int, traffic: Communication, result: np.ndarray, seconds: float
) -> dict[str, float]:
    del result
    sent, received = (sum(way.values()) / clients for way in (traffic.upload, traffic.download))
    return {
        "ms a client": 1e3 * seconds / clients,
        "kB sent": sent / 1e3,
        "kB received": received / 1e3,
    }


def _mean(
    vectors: Sequence[np.ndarray],
    leaving: Sequence[int],
    size: int,
    traffic: Communication | None = None,
) -> np.ndarray:
    """The mean over those that stay, float64 [d], in a fresh session, whose bytes are added to `traffic`."""
    presence = Presence()
    for client in leaving:
        presence.lose_when(client, "send", "upload")
    session = Session(len(vectors), mask_partners=size, presence=presence)
    own = {client: vector[:, None] for client, vector in enumerate(vectors)}
    total = server_sums(session, own, is_resilient=True)
    assert total is not None
    if traffic is not None:
        traffic.upload.clear()
        traffic.download.clear()
        traffic.add(session.communication())
    return total[:, 0] / len(session.contributors)


def _flower(*arguments: Any) -> Callable[[], np.ndarray]:
    from benchmarks.peers import secagg_plus

    return partial(secagg_plus.mean, *arguments)


def _agreement(ours: np.ndarray, theirs: np.ndarray) -> str:
    error = float(np.max(np.abs(ours - theirs)))
    assert error < 1e-5, f"means differ by {error}"
    return f"largest difference {error:.1e}"


def _a_client(result: np.ndarray, seconds: float) -> dict[str, float]:
    del result
    return {"ms a client": 1e3 * seconds / CLIENTS}
