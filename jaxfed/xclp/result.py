"""Result of one labeling: predictions, payload bytes by kind of message, and artifacts.

From the artifacts later points get labels. A session's channel counts its own messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from jaxfed.federation.communication import Communication
from jaxfed.kernels.conjugate_gradient import PropagationMatrix
from jaxfed.xclp.heads import Head
from jaxfed.xclp.selection.choice import PRIOR_LABELS, Choice, fits_prior, settings_of
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.knn_graph import GraphPoints
from jaxfed.xclp.steps.prediction import SHARPNESS, Prediction, predicted
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
        largest: largest confidence of any point; used by `relative_confidence`.
        p: the settings.
        points: the points of the graph, their labels (randomized if `label_epsilon` is set), and neighbors.
        mean: the mean of all vectors that `center` subtracts, float32 [d]; zeros without it.
        head: the linear head of `head="ridge"`, whose scores these are; None without it.
    """

    codes: list[np.ndarray]
    planes: jax.Array
    root_degrees: jax.Array
    scores: np.ndarray
    largest: np.float32
    p: Parameters
    points: GraphPoints
    mean: np.ndarray
    head: Head | None = None


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
        artifacts: the server's, from which later points get labels
            (`jaxfed.xclp.later_points`); None without points, or if a step is a protocol.
        session: the session of the labeling, if a step is a protocol.
        head: the linear head, if `Parameters.head` asks for one.
    """

    predictions: list[Prediction]
    steps: int
    residual: float
    communication: Communication
    choice: Choice[Parameters] | None = None
    artifacts: ServerArtifacts | None = None
    session: Session | None = None
    head: Head | None = None


def artifacts_of(
    p: Parameters,
    planes: jax.Array,
    codes: Sequence[np.ndarray],
    points: GraphPoints,
    matrix: PropagationMatrix,
    scores: Mapping[int, Scores],
    largest: np.float32,
    mean: np.ndarray,
    head: Head | None,
) -> ServerArtifacts:
    """The server's artifacts of a labeling in the clear, in which it has all scores.

    `codes` and `planes` may have more bits than the settings `p`, which use the first ones.
    """
    planes, codes = (
        planes[: p.num_bits],
        [client_codes[:, : p.num_bits // 32] for client_codes in codes],
    )
    return ServerArtifacts(
        codes=codes,
        planes=planes,
        root_degrees=matrix.root_degrees,
        scores=np.concatenate([each.unweighted for each in scores.values()]),
        largest=largest,
        p=p,
        points=points,
        mean=mean,
        head=head,
    )


def without_labels(
    vectors: Sequence[np.ndarray], p: Parameters, session: Session | None = None
) -> Result:
    """Result of a labeling without points: no client has any, or all clients have left."""
    nothing = [np.zeros((len(v), p.num_classes), np.float32) for v in vectors]
    communication = session.communication() if session else Communication()
    return Result(predicted(nothing), 0, 0.0, communication, session=session)


def communication_of(
    session: Session | None,
    points: GraphPoints,
    p: Parameters,
    sent_bits: int,
    requested: Parameters,
    choice: Choice[Parameters] | None,
    more: Communication,
) -> Communication:
    """Bytes of a labeling: its session's messages, its plaintext steps, and those of choosing settings.

    Codes have `sent_bits`, maybe more than `p`, the settings of the labeling; `requested` are those before
    the choice. `more` are bytes of a mean and a head outside the session.
    """
    communication = session.communication() if session else Communication()
    communication.add(more)
    numbers = {"num_clients": len(points.rows), "num_labeled": points.num_labeled}
    count_messages(
        communication, **numbers, num_points=len(points.indices), sent_bits=sent_bits, p=p
    )
    if choice:
        count_selection(communication, choice, **numbers, p=requested)
    return communication


def count_messages(
    communication: Communication,
    *,
    num_clients: int,
    num_labeled: int,
    num_points: int,
    num_at_server: int = 0,
    sent_bits: int | None = None,
    p: Parameters,
) -> None:
    """Add the payload bytes of one run of Algorithm 1's plaintext steps, in 4-byte numbers.

    With a session, only messages outside its channel are counted. If the server is a party, `num_at_server`
    of the points are its own. They cost no messages, and the other two numbers include neither the server nor
    its labels.

    `sent_bits`: size of a code, if codes were sent before fewer bits were chosen; else `p.num_bits`.
    Beyond the paper's count: the positions of labeled points, and the sums of the authors' switches.
    """
    num_remote = num_points - num_at_server
    if p.hamming == "plaintext":
        communication.up("codes", num_remote * (sent_bits or p.num_bits) // 8)
    is_plaintext = p.row_sums == "plaintext"
    if not p.has_session or p.influence == "labels":
        communication.up("positions", 4 * num_labeled)
        communication.down("influence_columns", 4 * num_points * num_labeled)
    if is_plaintext:
        communication.up("contributions", 4 * num_clients * num_points * p.num_classes)
        communication.down("row_sums", 4 * num_remote * p.num_classes)
    if is_plaintext and p.needs_class_counts:
        communication.up("class_counts", 4 * num_clients * p.num_classes)
        communication.down("class_counts", 4 * num_clients * p.num_classes)
    if p.relative_confidence:
        communication.up("confidence", 4 * num_clients)
        communication.down("largest_confidence", 4 * num_clients)


def count_selection(
    communication: Communication,
    choice: Choice[Parameters],
    *,
    num_clients: int,
    num_labeled: int,
    p: Parameters,
) -> None:
    """Add the payload bytes of choosing settings by leave-one-out, in 4-byte numbers, without codes.

    For every matrix S that was tried: the messages of a labeling of the labeled points alone, always with
    numbers of labels of each class, and its diagonals. For every setting: three counts of each client. If the
    client prior is fitted: two likelihoods, and the same three counts with it. `p` are the given settings,
    with `select`.
    """
    num_matrices = choice.num_matrices
    communication.add(choice.of_head)
    communication.up("positions", 4 * num_labeled)
    communication.down("diagonals", 4 * num_matrices * num_labeled)
    num_numbers = 1 + fits_prior(p) + (choice.sharpness is not None)
    communication.down("setting", 4 * num_numbers * num_clients)
    communication.down("influence_columns", 4 * num_matrices * num_labeled**2)
    rows = num_matrices * num_labeled
    communication.up("contributions", 4 * num_clients * rows * p.num_classes)
    communication.down("row_sums", 4 * rows * p.num_classes)
    num_counts = num_matrices if num_labeled else 0
    communication.up("class_counts", 4 * num_clients * num_counts * p.num_classes)
    communication.down("class_counts", 4 * num_clients * num_counts * p.num_classes)
    communication.up("hits", 12 * (len(settings_of(p)) + fits_prior(p)) * num_clients)
    num_likelihoods = len(SHARPNESS) + 1 if choice.sharpness is not None else 0
    if fits_prior(p):
        num_likelihoods += len(PRIOR_LABELS) + 1 + len(SHARPNESS) + 1
    if num_likelihoods:
        communication.up("log_likelihoods", 4 * num_likelihoods * num_clients)
