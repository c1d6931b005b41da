"""What is kept of a labeling, so that points that come later get labels: by the server, or by each party."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from jaxfed.xclp.parameters import Parameters
from jaxfed.xclp.smoother import Smoother

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


class Kept(NamedTuple):
    """What the server has after a labeling in the clear.

    Fields:
        codes: uint32 [n_j, L / 32] a client, as they came, with their noise.
        planes: Pi, float32 [L, d], which the clients have.
        root_degrees: D^1/2 of all points, float32 [n or more].
        scores: Z without the client prior, float32 [n, C].
        class_counts: of each client's answers, float32 [clients, C].
        largest: confidence of any point; read for `relative_confidence`.
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
    """What the parties have after a labeling through a session, each its own; clients go by their address.

    Fields:
        session: whose keys they have. It stays open: who has left since is not there any more.
        planes: the clients' Pi, float32 [L, d].
        codes: each client's, uint32 [n_j, L / 32], with their noise. (The server has them, too, where line 5
            is in the clear.)
        noisy: each client's codes of later points that it was asked for, with their noise, by what they were
            without: asked for again, a code has the noise that it had. Clients write in it.
        labels: each client's Y^(j), float32 [n_j, C], as it answers.
        largest: the largest confidence of any point, as each client heard it; read for `relative_confidence`.
        rows: R_j of all clients of the graph, which all know.
        matrix: the server's M, and the graph with its degrees.
        p: the settings, which all know.
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
