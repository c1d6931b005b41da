"""Masked Hamming among many clients with few points each, all pairs of clients beside a few others for each.

Setup of the session, and all work of all clients and the server, in one process. A pair of clients costs the
same in both, so time and messages for another number of clients follow from those of a pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.timing.contest import Contest, peak_memory_figure
from jaxfed.secure.cross_steps import nearest_others
from jaxfed.secure.hamming.protocols import masked
from jaxfed.secure.session.parties import Session
from jaxfed.xclp.steps.hamming import pair_choices

CLIENTS, POINTS, COMPARED = 100, 10, 20
MANY = 1_000
WORDS, NEIGHBORS = 128, 10


def pairs(with_peers: bool) -> Iterator[Contest]:
    """A labeling's line 5 under masks; the peer compares all pairs."""
    del with_peers
    yield Contest(
        task="masked Hamming among many clients",
        case={"clients": CLIENTS, "points": POINTS, "compared_clients": COMPARED},
        ours=partial(_distances, CLIENTS, COMPARED),
        peers={"all_pairs": partial(_distances, CLIENTS, 0)},
        figures=_of_a_pair,
        samples=1,
    )


def all_pairs(with_peers: bool) -> Iterator[Contest]:
    """The same of a thousand clients, all of their 499,500 pairs."""
    del with_peers
    yield Contest(
        task="masked Hamming among many clients",
        case={"clients": MANY, "points": POINTS},
        ours=partial(_distances, MANY, 0),
        figures=lambda session, seconds: {
            **_of_a_pair(session, seconds),
            **peak_memory_figure(),
        },
        once=True,
    )


def _distances(num_clients: int, compared: int) -> Session:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**32, (num_clients, POINTS, WORDS), dtype=np.uint32)
    session = Session(num_clients)
    choices = pair_choices(compared, "random", 0) if compared else ()
    nearest_others(session, dict(enumerate(codes)), NEIGHBORS, masked, choices=choices)
    return session


def _of_a_pair(session: Session, seconds: float) -> dict[str, float]:
    volumes = session.channel.volumes
    shares = [volume for route, volume in volumes.items() if route.kind.startswith("shares")]
    num_pairs = len(shares) / 2
    num_bytes = sum(volume.num_bytes for volume in shares)
    return {"ms a pair": 1e3 * seconds / num_pairs, "bytes a pair": num_bytes / num_pairs}
