"""Result of one labeling, and the artifacts from which later points get labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from jaxfed.federation.communication import Communication
from jaxfed.xclp.selection.choice import Choice
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.client_predictions import predicted
from jaxfed.xclp.steps.contributions import Contributions
from jaxfed.xclp.steps.knn_graph import GraphPoints
from jaxfed.xclp.steps.prediction import Prediction
from jaxfed.xclp.steps.propagation_matrix import PropagationMatrix
from jaxfed.xclp.steps.row_sums import Scores

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


class ServerArtifacts(NamedTuple):
    """The server's artifacts of a labeling in the clear.

    Fields:
        codes: uint32 [n_j, L / 32] a client, as received, with their noise.
        planes: Pi, float32 [L, d], which the clients have.
        root_degrees: D^1/2 of all points, float32 [n or more].
        scores: Z without the client prior, float32 [n, C].
        class_counts: numbers of each client's (randomized) labels, float32 [clients, C].
        largest: largest confidence of any point; used by `relative_confidence`.
        p: the settings.
        points: the points of the graph, their labels (randomized if `label_epsilon` is set), and neighbors.
        values: S Y, float32 [n, C].
    """

    codes: list[np.ndarray]
    planes: jax.Array
    root_degrees: jax.Array
    scores: np.ndarray
    class_counts: np.ndarray
    largest: np.float32
    p: Parameters
    points: GraphPoints
    values: np.ndarray


class PartyArtifacts(NamedTuple):
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
        matrix: the server's S, and the graph with its degrees.
        p: the settings, known to all.
    """

    session: Session
    planes: jax.Array
    codes: dict[int, np.ndarray]
    noisy: dict[int, dict[bytes, np.ndarray]]
    labels: dict[int, np.ndarray]
    largest: dict[int, np.float32]
    rows: dict[int, slice]
    matrix: PropagationMatrix
    p: Parameters


class Result(NamedTuple):
    """One labeling of all clients.

    Fields:
        predictions: one `Prediction` a client, in the clients' order.
        steps: conjugate-gradient steps of the slowest column.
        residual: largest relative residual of any column, recomputed.
        communication: bytes that Algorithm 1 sends: codes and contributions up, influence columns and
            row sums down. With a secure protocol: every message that went through its channel. Labeling
            later points adds what they send.
        choice: the settings that `Parameters.select` has chosen; None without selection.
        artifacts: labeling artifacts, from which later points get labels
            (`jaxfed.xclp.later_points.out_of_sample`): the server's, or if a step is a protocol every
            party's, with the session; None without points.
    """

    predictions: list[Prediction]
    steps: int
    residual: float
    communication: Communication
    choice: Choice[Parameters] | None = None
    artifacts: ServerArtifacts | PartyArtifacts | None = None

    @property
    def unreached(self) -> int:
        """Number of points that no label reaches."""
        return sum(int(np.sum(own.labels < 0)) for own in self.predictions)


def artifacts_of(
    session: Session | None,
    p: Parameters,
    planes: jax.Array,
    codes: Sequence[np.ndarray],
    points: GraphPoints,
    matrix: PropagationMatrix,
    contributions: Contributions,
    scores: Mapping[int, Scores],
    largest: Mapping[int, np.float32],
) -> ServerArtifacts | PartyArtifacts:
    """Artifacts of a labeling: of each party in a session, else of the server, which then has all scores.

    `codes` and `planes` may have more bits than the settings `p`, which use the first ones.
    """
    planes, codes = planes[: p.num_bits], [own[:, : p.num_bits // 32] for own in codes]
    if session:
        return PartyArtifacts(
            session=session,
            planes=planes,
            codes={j: codes[j] for j in points.rows},
            noisy={j: {} for j in points.rows},
            labels=points.labels,
            largest=dict(largest),
            rows=points.rows,
            matrix=matrix,
            p=p,
        )
    first, *others = contributions.values.values()
    return ServerArtifacts(
        codes=codes,
        planes=planes,
        root_degrees=matrix.root_degrees,
        scores=np.concatenate([own.unweighted for own in scores.values()]),
        class_counts=np.stack([y.sum(axis=0) for y in points.labels.values()]),
        largest=max(largest.values(), default=np.float32(0)),
        p=p,
        points=points,
        values=sum(others, start=first),
    )


def without_labels(
    vectors: Sequence[np.ndarray], p: Parameters, session: Session | None = None
) -> Result:
    """Result of a labeling without points: no client has any, or all clients have left."""
    nothing = [np.zeros((len(v), p.num_classes), np.float32) for v in vectors]
    communication = session.communication() if session else Communication()
    return Result(predicted(nothing), 0, 0.0, communication)
