"""Cross-Client Label Propagation: Algorithm 1 of the paper, line by line.

Scott, Yeo, Lampert, "Cross-client Label Propagation for Transductive and Semi-Supervised Federated
Learning", TMLR 2023, https://openreview.net/forum?id=gYO4GX8R5k.

Clients j in P hold vectors V^(j) [n_j, d] and labels for some of them. Jointly, without sharing either,
they build one graph over all n = sum_j n_j points and propagate the labels over it. The comments in
`cross_client_label_propagation` are the paper's lines, with its numbers and marks: CS client step, SS server
step, XS cross step. What is marked "extension" is not in the paper. Steps that a protocol may replace are
looked up by name (`jaxfed.xclp.settings.parameters`). A run with protocols has one session of all
parties. Every message between parties goes through it, and clients may leave it at any message (`presence`).

Departures from the printed algorithm, each on purpose:
  * Line 7 keeps each row's k largest entries *other than its own*. As printed, the diagonal
    cos(0) = 1 would always be one of the k; the authors' code leaves it out as well.
  * Lines 5 to 7 stream: cos(pi h / L) falls with h, so the k largest cosines are the k smallest
    distances, and the n x n matrices H and A never exist. Ties go to the smaller index.
  * Negative similarities count as no edge (the paper's D^-1/2 needs non-negative degrees).
  * Line 10 forms no inverse, and line 12 may send no columns (`jaxfed.xclp.steps.contributions`). In the
    clear `Result.communication` counts columns either way, as the paper sends them.
  * A point that no label reaches has Z = 0; it gets label -1 and confidence 0, and is counted.
  * The conjugate gradient leaves components without labels exactly zero. Scores below zero count as
    zero: rounding leaves them (S has no negative entry), and estimates of randomized labels have them.

Switches that reproduce the authors' released code where it goes beyond the paper: `similarity_power=3`
(edge weights cubed), `label_matrix="class_balanced"` (Y's columns divided by the class's number of labels),
`relative_confidence` (confidences divided by the largest of the cohort). Default: the paper. Z is linear
in Y, so each client divides its rows of Z itself, by class counts that arrive with them.

Extensions: vectors centered by their mean, noise on codes and labels (`randomized`), settings chosen by
leave-one-out (`choose`), a linear head on the labels (`jaxfed.xclp.heads`), labels of
later points from the artifacts (`jaxfed.xclp.later_points`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import HERE, Execution, require
from jaxfed.kernels.conjugate_gradient import PropagationMatrix
from jaxfed.xclp.heads import ClientSums, smoothed
from jaxfed.xclp.inputs import checked_run
from jaxfed.xclp.result import Result, artifacts_of, communication_of, without_labels
from jaxfed.xclp.selection.choice import choose, largest_settings
from jaxfed.xclp.settings.parameters import INFLUENCE, PROJECTIONS, Parameters
from jaxfed.xclp.steps.codes import client_codes, open_session, randomized
from jaxfed.xclp.steps.knn_graph import KnnGraphs
from jaxfed.xclp.steps.prediction import client_predictions
from jaxfed.xclp.steps.propagation_matrix import SolverAccuracy, warn_of_solution
from jaxfed.xclp.steps.row_sums import summed_scores

if TYPE_CHECKING:
    from jaxfed.secure.session.channel import Presence


def cross_client_label_propagation(
    vectors: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    parameters: Parameters,
    execution: Execution = HERE,
    presence: Presence | None = None,
    client_ids: Sequence[int] | None = None,
) -> Result:
    """Run Algorithm 1 on the clients' (V^(j), Y^(j)); arguments and errors as `jaxfed.xclp.propagate_labels`.

    `client_ids`: the clients' numbers in the federation, as `parameters.presence` uses them; default 0, 1,
    .... An explicit `presence` replaces that of `parameters`.
    """
    p, is_federation = parameters, client_ids is None and presence is None
    vectors, labels = checked_run(vectors, labels, p, is_federation=is_federation)
    n, dim = sum(map(len, vectors)), vectors[0].shape[1]
    if not n:
        return without_labels(vectors, p)
    largest = largest_settings(p, n)
    num_bits = largest.num_bits
    require(4 * num_bits * dim, "hyperplanes", key="num_bits", value=num_bits, owner="xclp")
    mean, means = np.zeros(dim, np.float32), Communication()

    # 1-XS   setup: clients exchange keys, agree on a random seed
    session = open_session(len(vectors), p, presence, client_ids)
    if session and not session.clients:
        return without_labels(vectors, p, session)
    # extension: the mean of all vectors, a sum over the clients, is subtracted from each
    if p.center:
        sums = ClientSums(len(vectors), p.head_sums, session)
        mean, means = sums.mean(vectors), sums.communication
    # 2-CS   for client j in P in parallel do
    # 3-CS     Pi [L, d], i.i.d. N(0, 1) by the seed, the same at each client
    planes = PROJECTIONS[p.projection](p.seed, largest.num_bits, dim, session)
    # 4-CS     B^(j) <- sign(Pi V^(j)T)
    centered = [v - mean for v in vectors] if p.center else vectors
    codes = execution.once(client_codes, centered, planes)
    # extension: noise on codes and labels; settings chosen by leave-one-out
    codes, labels = randomized(codes, labels, p, session)
    graphs = KnnGraphs(codes, labels, largest, session, execution)
    choice = choose(p, graphs, centered)
    p = choice.p if choice else p
    # 5-XS   H <- SecureHamming((B^(j)) for j in P)
    # 6-SS   A <- cos(pi H / L), at the entries of line 7 alone
    # 7-SS   B <- the k largest entries of each row of A, which are the k smallest of H
    points = graphs.points(p.num_bits)
    if not len(points.indices):
        return without_labels(vectors, p, session)
    # 8-SS   W = B + B^T
    # 9-SS   W <- D^-1/2 W D^-1/2
    graph = graphs.graph(p)
    # 10-SS  S <- (I - alpha W)^-1, not formed: a linear system for each column that is needed
    matrix = PropagationMatrix(graph, p.alpha, p.tolerance, p.max_steps)
    # 11-CS  for client j in P in parallel do
    # 12-CS    S_L^(j) <- labeled columns of S
    # 13-CS    Zbar^(j) <- S_L^(j) Y_L^(j)
    contributions = INFLUENCE[p.influence](matrix, points.labels, points.rows, session)
    # 14-XS  Z^(j) <- SecureRowSums((Zbar^(k)) for k in P)_j
    roots = np.asarray(matrix.root_degrees)
    scores = summed_scores(contributions, points.labels, points.rows, p, session, execution, roots)
    # 15-CS  y^(j) <- argmax_c Z_ic^(j) for every point i
    # 16-CS  omega^(j) <- 1 - entropy(Z_ic^(j) / sum_c Z_ic^(j)) / log C
    predictions, largest_confidence = client_predictions(
        vectors, scores, p, choice.sharpness if choice else None
    )

    # extension: a linear head on these labels, whose answers go through lines 10 to 16 instead
    accuracy, head = contributions.accuracy, None
    if p.head != "none" and scores:
        again = smoothed(vectors, mean, predictions, matrix, points, p, session, execution)
        head, scores, accuracy = again.head, again.scores, accuracy.worst(again.accuracy)
        means.add(again.communication)
        predictions, _ = client_predictions(vectors, scores, p, None)
    warn_of_solution(accuracy, choice.systems if choice else SolverAccuracy(), p)
    return Result(
        predictions=predictions,
        steps=accuracy.steps,
        residual=accuracy.residual,
        communication=communication_of(
            session, points, p, largest.num_bits, parameters, choice, means
        ),
        choice=choice,
        artifacts=None
        if session
        else artifacts_of(p, planes, codes, points, matrix, scores, largest_confidence, mean, head),
        session=session,
        head=head,
    )
