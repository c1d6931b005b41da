"""Labeling artifacts from which later points get labels: the server's, or those of each party."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from jaxfed.xclp.parameters import Parameters
from jaxfed.xclp.smoother import Smoother

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


class Kept(NamedTuple):
    """The server's artifacts of a labeling in the clear.

    Fields:
        codes: uint32 [n_j, L / 32] a client, as received, with their noise.
        planes: Pi, float32 [L, d], which the clients have.
        root_degrees: D^1/2 of all points, float32 [n or more].
        scores: Z without the client prior, float32 [n, C].
        class_counts: numbers of each client's (randomized) labels, float32 [clients, C].
        largest: largest confidence of any point; used by `relative_confidence`.
        p: the settings.
    """

    codes: list[np.ndarray]
    planes: jax.Array
    root_degrees: jax.Array
    scores: np.ndarray
    class_counts: np.ndarray
    largest: np.float32
    p: Parameters


class KeptApart(NamedTuple):
    """The artifacts of each party after a labeling through a session; clients are keyed by their address.

    Fields:
        session: the session of the labeling, with its keys. It stays open; clients that leave later are gone.
        planes: the clients' Pi, float32 [L, d].
        codes: each client's, uint32 [n_j, L / 32], with their noise. (The server has them, too, if line 5 is
            in the clear.)
        noisy: each client's cache of noisy codes of later points, by the code without noise, so that a
            repeated code gets the same noise. Clients add to it.
        labels: each client's Y^(j), float32 [n_j, C], randomized if `label_epsilon` is set.
        largest: the largest confidence of any point, as each client received it; used by
            `relative_confidence`.
        rows: R_j of all clients of the graph, known to all.
        matrix: the server's M, and the graph with its degrees.
        p: the settings, known to all.
    """

    session: Session
    planes: jax.Array
    codes: dict[int, np.ndarray]
    noisy: dict[int, dict[bytes, np.ndarray]]
    labels: dict[int, np.ndarray]
    largest: dict[int, np.float32]
    rows: dict[int, slice]
    matrix: Smoother
    p: Parameters
