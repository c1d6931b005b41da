"""Payload bytes of one run of Algorithm 1, by kind of message; a session's channel counts its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxfed.federation.communication import Communication
from jaxfed.xclp.selection.choice import Choice, fits_prior, settings_of
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.calibration import SHARPNESS
from jaxfed.xclp.steps.knn_graph import GraphPoints

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


def communication_of(
    session: Session | None,
    points: GraphPoints,
    p: Parameters,
    sent_bits: int,
    given: Parameters,
    choice: Choice[Parameters] | None,
) -> Communication:
    """Bytes of a labeling: its session's messages, its plaintext steps, and those of choosing settings.

    Args:
        session: the parties, if a step is a protocol.
        points: the points of the graph.
        p: the settings of the labeling.
        sent_bits: size of a code, which may have more bits than `p`.
        given: the settings before the choice.
        choice: the choice; None: nothing was to be chosen.
    """
    communication = session.communication() if session else Communication()
    numbers = {"num_clients": len(points.rows), "num_labeled": points.num_labeled}
    count_messages(
        communication, **numbers, num_points=len(points.indices), sent_bits=sent_bits, p=p
    )
    if choice:
        count_selection(communication, choice, **numbers, p=given)
    return communication


def count_messages(
    communication: Communication,
    *,
    num_clients: int,
    num_labeled: int,
    num_points: int,
    num_at_server: int = 0,
    num_codes: int | None = None,
    sent_bits: int | None = None,
    p: Parameters,
) -> None:
    """Add the payload bytes of one run of Algorithm 1's plaintext steps, in 4-byte numbers.

    If the server is a party, `num_at_server` of the points are its own. They cost no messages, and the other
    two numbers include neither the server nor its labels.

    `num_codes`: number of codes that are sent, if the server has the others.
    `sent_bits`: size of a code, if codes were sent before fewer bits were chosen; else `p.num_bits`.
    Beyond the paper's count: the positions of labeled points, and the sums of the authors' switches.
    """
    num_remote = num_points - num_at_server
    if p.hamming == "plaintext":
        num_codes = num_remote if num_codes is None else num_codes
        communication.up("codes", num_codes * (sent_bits or p.num_bits) // 8)
    _count_sums(communication, num_clients, num_labeled, num_points, num_remote, p)
    if p.relative_confidence and not p.has_session:
        communication.up("confidence", 4 * num_clients)
        communication.down("largest_confidence", 4 * num_clients)


def count_later(communication: Communication, num_points: int, p: Parameters) -> None:
    """Add the payload bytes of later points in the clear: their codes up, their scores down."""
    communication.up("codes", num_points * p.num_bits // 8)
    communication.down("row_sums", 4 * num_points * p.num_classes)


def count_later_messages(
    communication: Communication,
    *,
    num_clients: int,
    num_labeled: int,
    num_points: int,
    p: Parameters,
) -> None:
    """Add the payload bytes of a session's plaintext steps for later points, outside its channel.

    As `count_messages`, with the points' codes and one row of sums for each
    (`jaxfed.xclp.later_points.later_rows`).
    """
    if p.hamming == "plaintext":
        communication.up("codes", num_points * p.num_bits // 8)
    _count_sums(communication, num_clients, num_labeled, num_points, num_points, p)


def _count_sums(
    communication: Communication,
    num_clients: int,
    num_labeled: int,
    num_rows: int,
    num_remote: int,
    p: Parameters,
) -> None:
    """Lines 12 and 14 if they are in the clear; `num_remote` of the rows are not the server's own."""
    is_plaintext = p.row_sums == "plaintext"
    if not p.has_session or (is_plaintext and p.influence == "labels"):
        communication.up("positions", 4 * num_labeled)
        communication.down("influence_columns", 4 * num_rows * num_labeled)
    if is_plaintext:
        communication.up("contributions", 4 * num_clients * num_rows * p.num_classes)
        communication.down("row_sums", 4 * num_remote * p.num_classes)
    if is_plaintext and p.needs_class_counts:
        communication.up("class_counts", 4 * num_clients * p.num_classes)
        communication.down("class_counts", 4 * num_clients * p.num_classes)


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
    client prior is fitted: two likelihoods, and the same three counts with it. With a session, only messages
    outside its channel are counted.

    Args:
        communication: where they are added.
        choice: the chosen settings.
        num_clients: number of clients that take part.
        num_labeled: points with labels.
        p: the given settings, with `select`.
    """
    num_matrices, is_plaintext = choice.num_matrices, p.row_sums == "plaintext"
    if not p.has_session:
        communication.up("positions", 4 * num_labeled)
        communication.down("diagonals", 4 * num_matrices * num_labeled)
        num_numbers = 1 + fits_prior(p) + (choice.sharpness is not None)
        communication.down("setting", 4 * num_numbers * num_clients)
    if not p.has_session or (is_plaintext and p.influence == "labels"):
        communication.down("influence_columns", 4 * num_matrices * num_labeled**2)
    if is_plaintext:
        rows = num_matrices * num_labeled
        communication.up("contributions", 4 * num_clients * rows * p.num_classes)
        communication.down("row_sums", 4 * rows * p.num_classes)
        num_counts = num_matrices if num_labeled else 0
        communication.up("class_counts", 4 * num_clients * num_counts * p.num_classes)
        communication.down("class_counts", 4 * num_clients * num_counts * p.num_classes)
        communication.up("hits", 12 * (len(settings_of(p)) + fits_prior(p)) * num_clients)
        num_likelihoods = len(SHARPNESS) + 1 if choice.sharpness is not None else 0
        if fits_prior(p):
            from jaxfed.xclp.selection.prior_fit import PRIOR_LABELS

            num_likelihoods += len(PRIOR_LABELS) + 1 + len(SHARPNESS) + 1
        if num_likelihoods:
            communication.up("log_likelihoods", 4 * num_likelihoods * num_clients)
