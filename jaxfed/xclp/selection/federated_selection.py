"""`jaxfed.xclp.selection.choice` over a federation: messages between the parties, and the sums at the server.

Without a session one process has everything and computes what the parties would. Through a session, for every
candidate matrix S, lines 10 to 14 run once among the labeled points alone, m of n
(`jaxfed.xclp.selection.leave_one_out.AtLabeled`):

    CS: positions of its labels;  XS: influence of labels upon labels, as `influence` and `row_sums` say
    SS: S_ii to their owner;  CS: X_i - S_ii y_i, hits of all settings that share S
    XS: sums of the clients' counts, masked where `row_sums` is;  SS: the setting that was chosen
    XS: if the client prior is fitted, sums of two likelihoods and of the counts with it;  SS: the prior

So no party sees scores of unlabeled points under a setting that was not chosen. A setting costs (m / n) of a
labeling in addition to its columns. A client that leaves during selection does not influence the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jaxfed.federation.execution.settings import Execution
from jaxfed.kernels.devices import padded_to
from jaxfed.privacy import randomized_response
from jaxfed.xclp.selection.choice import Choice, fits_prior, plaintext_total, select, settings_of
from jaxfed.xclp.selection.leave_one_out import AtLabeled, Labeled, diagonal, labeled_rows
from jaxfed.xclp.settings.exchangeable_steps import INFLUENCE, ROW_SUMS
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.calibration import SHARPNESS
from jaxfed.xclp.steps.codes import rows_of_clients
from jaxfed.xclp.steps.contributions import EVERYBODY
from jaxfed.xclp.steps.knn_graph import KnnGraphs
from jaxfed.xclp.steps.row_sums import class_counts, own_rows

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


def largest_settings(p: Parameters, num_points: int) -> Parameters:
    """`p` with the largest num_bits and num_neighbors among the candidates.

    There are `num_points` neighbors at most: further ones would hold no edges.
    """
    tried = settings_of(p) if p.select else [p]
    return replace(
        p,
        select=(),
        num_bits=max(s.num_bits for s in tried),
        num_neighbors=min(max(s.num_neighbors for s in tried), num_points),
    )


def choose(
    p: Parameters, graphs: KnnGraphs, session: Session | None, execution: Execution
) -> Choice[Parameters] | None:
    """Choose the settings by leave-one-out, and announce them to the clients of a session.

    Returns None if `p` leaves nothing to choose.
    """
    if not p.asks_labels:
        return None
    evidence = evidence_of(p, graphs, session, execution)
    if session is None:
        return select(p, evidence, plaintext_total)

    from jaxfed.secure.influence import left_out

    def total(counts: Mapping[int, np.ndarray]) -> np.ndarray | None:
        if p.row_sums == "plaintext":
            return plaintext_total(counts)
        from jaxfed.secure.row_sums.server_sums import server_sums

        return server_sums(session, counts, is_resilient=p.row_sums != "masked")

    choice = select(p, evidence, total)
    given = p.client_prior, p.client_prior_labels
    settings, found = settings_of(p), (choice.p.client_prior, choice.p.client_prior_labels)
    number = settings.index(replace(choice.p, client_prior=given[0], client_prior_labels=given[1]))
    left_out.send_setting(session, number, len(settings))
    if fits_prior(p):
        from jaxfed.xclp.selection.prior_fit import priors

        known = [given, *priors()]
        left_out.send_setting(session, known.index(found), len(known))
    if choice.sharpness is not None:
        left_out.send_setting(session, SHARPNESS.index(choice.sharpness), len(SHARPNESS))
    return choice


def evidence_of(
    p: Parameters, graphs: KnnGraphs, session: Session | None, execution: Execution
) -> Callable[[Parameters], dict[int, Labeled]]:
    """Leave-one-out data by setting: a function to every client's, or in the clear to `EVERYBODY`'s."""
    if session is None:
        return lambda s: {EVERYBODY: _joint(s, graphs)}
    positions = _positions(session, graphs, p)
    return lambda s: _through_session(s, graphs, positions, session, execution)


def _joint(s: Parameters, graphs: KnnGraphs) -> Labeled:
    """Leave-one-out data of all clients' labeled points, in the clear."""
    matrix, points = graphs.matrix(s), graphs.points(s.num_bits)
    y = np.concatenate(list(points.labels.values()))
    answers = np.where(y.any(axis=1), y.argmax(axis=1), -1)
    owner = np.concatenate([np.full(r.stop - r.start, j) for j, r in points.rows.items()])
    n = matrix.num_points
    y, owner, answers = padded_to(y, n), padded_to(owner, n), padded_to(answers, n, fill=-1)
    return labeled_rows(matrix, _unbiased(y, s), owner, answers)


def _positions(session: Session, graphs: KnnGraphs, p: Parameters) -> dict[int, np.ndarray]:
    """Positions of each client's labeled points, int [m_j], received by the server; of clients that stay."""
    from jaxfed.secure.influence.columns import PositionsClient, collected_positions
    from jaxfed.secure.session.endpoint import SERVER

    labels = graphs.points(p.num_bits).labels
    clients = [client for client in labels if client in session.clients]
    own = {client: np.flatnonzero(labels[client].any(axis=1)) for client in clients}
    parties = session.parties(PositionsClient, own, clients)
    sizes = {client: len(labels[client]) for client in clients}
    return collected_positions(parties, session.endpoints[SERVER], sizes)


def _through_session(
    s: Parameters,
    graphs: KnnGraphs,
    positions: Mapping[int, np.ndarray],
    session: Session,
    execution: Execution,
) -> dict[int, Labeled]:
    """Leave-one-out data of every client that stays, for its own labeled points."""
    from jaxfed.secure.influence import left_out

    points = graphs.points(s.num_bits)
    clients = [j for j in points.labels if j in positions and j in session.clients]
    if not any(len(positions[j]) for j in clients):
        return {}
    joint = np.concatenate([points.rows[j].start + positions[j] for j in clients])
    matrix = graphs.matrix(s)
    part = AtLabeled(matrix, joint)
    labels = {j: points.labels[j][positions[j]] for j in clients}
    rows = rows_of_clients({j: len(y) for j, y in labels.items()})
    contributions = INFLUENCE[s.influence](
        part, labels, rows, session, is_secure=s.row_sums != "plaintext"
    )
    counts = {j: class_counts(y, are_needed=True) for j, y in labels.items()}
    sums = ROW_SUMS[s.row_sums](contributions, counts, rows, session, execution, **s.masking)
    own, accuracy = part.diagonal[: len(joint)], contributions.accuracy
    if EVERYBODY in contributions.values:  # the server has received Y and solved for no columns
        diagonals, of_diagonals = diagonal(matrix, joint)
        own = np.where(part.alone[: len(joint)], own, diagonals)
        accuracy = accuracy.worst(of_diagonals)
    sent = {j: own[rows[j]] for j in sums}
    return {
        j: Labeled(
            rows=own_rows(*sums[j], s),
            diagonal=of_client,
            labels=_unbiased(labels[j], s),
            answers=labels[j].argmax(axis=1),
            client_counts=_unbiased(labels[j], s).sum(axis=0),
            cohort_counts=_unbiased(sums[j][1], s).sum(axis=0),
            accuracy=accuracy,
        )
        for j, of_client in left_out.sent_diagonals(session, sent).items()
    }


def _unbiased(y: np.ndarray, p: Parameters) -> np.ndarray:
    """Y, or the unbiased estimate of Y if labels are randomized."""
    if not p.label_epsilon:
        return y
    estimate = randomized_response.unbiased(y, p.num_classes, p.label_epsilon)
    return estimate.astype(np.float32)
