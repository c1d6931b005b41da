"""A labeling extended by later points: that of all points together, without the distances among old ones.

`jaxfed.xclp.later_points.out_of_sample` labels later points and changes nothing else. Here they become points
of the graph, with labels if they have some, and every point gets a new label. Of n old and m later points,

    codes        of the m later points alone                                               lines 3 and 4
    neighbors    from the old lists and m (n + m) distances                                lines 5 and 7
    graph        built again, n k numbers                                                  lines 8 and 9
    scores       conjugate gradients from the old scores, to the same tolerance            line 10
    the rest     as in a labeling                                                          lines 14 to 16

The result is that of `propagate_labels` for the clients' old and later points, each client's later points
after its old ones. Neighbor lists are equal, ties included, and so is the graph. Scores solve the same system
to the same tolerance from another start, so they differ by as much as two solutions within the tolerance. A
label differs only where two scores of a point are as close as that. There are four exceptions:

  * Settings that `select` chose, and the sharpness of calibrated confidences, stay those of the first
    labeling.
  * With `center` the mean that is subtracted stays that of the first labeling's points.
  * With `neighbors="approximate"` old points keep what that search missed among old points. Later points
    have exact lists.
  * With `bit_epsilon` and `label_epsilon` the later points' noise is drawn by itself. The old points' codes
    and labels keep theirs, so no budget is spent twice: a later code has the noise that `label` gives it.

Start. D^-1/2 Z varies little between neighbors, and D changes where a later point is listed. So an old point
starts from Z with its D^1/2 replaced by the new one, and a later point from the mean of D^-1/2 Z over its old
neighbors. The solver adds what is missing along the leading eigenvector.

Privacy. In the clear: the server, which has the codes and labels of the labeling, receives those of the later
points. Clients receive their rows of Z once more. A client sees how the scores of its own points change with
the others' later points. With protocols the server has no codes, and all pairs would have to be compared
again: there the whole labeling is the way.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.settings import HERE, Execution
from jaxfed.kernels.devices import padded_to
from jaxfed.kernels.knn_extended import extended_hamming_knn
from jaxfed.privacy import randomized_response
from jaxfed.random_streams import Stream
from jaxfed.xclp.algorithm import cross_client_label_propagation
from jaxfed.xclp.inputs import checked
from jaxfed.xclp.later_points.out_of_sample import later_codes
from jaxfed.xclp.result import Result, ServerArtifacts, artifacts_of, count_messages
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.codes import rows_of_clients, setup
from jaxfed.xclp.steps.contributions import EVERYBODY, Contributions
from jaxfed.xclp.steps.knn_graph import GraphPoints, graph_of, one_hot_labels
from jaxfed.xclp.steps.prediction import client_predictions
from jaxfed.xclp.steps.propagation_matrix import (
    PropagationMatrix,
    SolverAccuracy,
    accuracy_of,
    warn_of_cut_short,
)
from jaxfed.xclp.steps.row_sums import summed_scores


def extend_labeling(
    result: Result,
    vectors: Sequence[np.ndarray],
    labels: Sequence[np.ndarray] | None,
    p: Parameters,
    execution: Execution = HERE,
) -> Result:
    """Label the points of a labeling and later ones together.

    Args:
        result: of `jaxfed.xclp.cross_client_label_propagation`, or of this function; it stays as it is.
        vectors: one float [m_j, d] array a client: the labeling's clients in their order; clients beyond the
            end of the list have no later points. Newcomers may follow.
        labels: one int [m_j] array for each of the vectors, -1 = unlabeled; None: no later point is labeled.
        p: the settings that the labeling was given.
        execution: as for a labeling; the search runs on one device.

    Returns:
        A result with the old and then the later points of each client. Its `communication` has the bytes of
        `result`, the later codes, and all contributions and rows of Z once more.

    Raises:
        UsageError: a step is a protocol, or compares drawn pairs of clients alone; invalid vectors or labels,
            as for a labeling, or of another d.

    Cost: m d L + m (n + m) L / 32 + (steps) (n + m) k C operations. Neighbors are compiled for eight
    numbers m between powers of two, graph and system as in a labeling of n + m points.
    """
    if p.has_session:
        raise UsageError(
            f"a labeling with xclp.hamming={p.hamming!r}, xclp.row_sums={p.row_sums!r} has no step that "
            "extends it: label all points anew with `propagate_labels`"
        )
    vectors, labels = checked(vectors, labels, p.num_classes)
    if p.compares_few(max(len(result.predictions), len(vectors))):
        raise UsageError(
            f"a labeling with xclp.compared_clients={p.compared_clients} compares drawn pairs of clients, "
            "and no step that extends it does: label the later points with `label`, or all points anew with "
            "`propagate_labels`"
        )
    missing = len(result.predictions) - len(vectors)
    vectors += [vectors[0][:0]] * missing
    labels += [labels[0][:0]] * missing
    old = result.artifacts
    if not isinstance(old, ServerArtifacts):  # no point so far
        return cross_client_label_propagation(vectors, labels, p, execution)
    if old.p.head != "none":
        raise UsageError(
            "a labeling with xclp.head='ridge' has no step that extends it: label the later points with "
            "`label`, or all points anew with `propagate_labels`"
        )
    dim, p, choice = old.planes.shape[1], old.p, result.choice
    if vectors[0].shape[1] != dim:
        raise UsageError(
            f"later points have vectors of {vectors[0].shape[1]} entries; use {dim}, as in the labeling"
        )
    codes, points, is_later = _with_later(old, vectors, labels)
    matrix = PropagationMatrix(graph_of(points, p, execution), p)
    y = np.concatenate(list(points.labels.values()))
    start = _start(old, points, np.asarray(matrix.root_degrees), is_later)
    z, info = matrix.solved(*(padded_to(values, matrix.num_points) for values in (y, start)))
    accuracy = accuracy_of(info, p.max_steps)
    contributions = Contributions({EVERYBODY: np.asarray(z)[: len(is_later)]}, accuracy)
    scores = summed_scores(
        *(contributions, points.labels, points.rows, p, None, execution),
        roots=np.asarray(matrix.root_degrees),
    )
    predictions, largest = client_predictions(
        codes, scores, p, None, choice.sharpness if choice else None
    )
    warn_of_cut_short(accuracy, SolverAccuracy(), p.tolerance)
    communication = Communication()
    communication.add(result.communication)
    count_messages(
        communication,
        num_clients=len(points.rows),
        num_labeled=points.num_labeled,
        num_points=len(is_later),
        num_codes=sum(map(len, vectors)),
        p=p,
    )
    return Result(
        predictions=predictions,
        steps=accuracy.steps,
        residual=accuracy.residual,
        communication=communication,
        choice=choice,
        artifacts=artifacts_of(
            *(p, old.planes, codes, points, matrix, contributions, scores, largest),
            mean=old.mean,
        ),
    )


def _with_later(
    old: ServerArtifacts, vectors: Sequence[np.ndarray], labels: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], GraphPoints, np.ndarray]:
    """Lines 2 to 7 for the later points: codes a client, all points, and bool [n + m], which are later."""
    p, later = old.p, later_codes(old, vectors)
    answers = _randomized(labels, len(old.points.indices), p)
    nothing = later[0][:0]
    old_codes = [*old.codes, *[nothing] * (len(later) - len(old.codes))]
    both = zip(old_codes, later, strict=True)
    joint = np.concatenate([part for parts in both for part in parts])
    of_later = {j: one_hot_labels(own, p.num_classes) for j, own in enumerate(answers)}
    of_all = {
        j: np.concatenate([old.points.labels.get(j, own[:0]), own]) for j, own in of_later.items()
    }
    is_later = np.concatenate(
        [
            np.arange(len(y)) >= len(y) - len(own)
            for y, own in zip(of_all.values(), later, strict=True)
        ]
    )
    indices, distances = extended_hamming_knn(
        joint,
        is_later,
        old.points.indices,
        old.points.distances,
        min(p.num_neighbors, len(is_later)),
    )
    rows = rows_of_clients(of_all)
    codes = [joint[own] for own in rows.values()]
    return codes, GraphPoints(of_all, rows, indices, distances), is_later


def _randomized(labels: Sequence[np.ndarray], num_old: int, p: Parameters) -> list[np.ndarray]:
    if not p.label_epsilon:
        return list(labels)
    key = jax.random.fold_in(jax.random.fold_in(setup(p.seed), Stream.LATE_LABELS), num_old)
    answers = randomized_response.randomize_labels(
        np.concatenate(labels), randomized_response.from_key(key), p.num_classes, p.label_epsilon
    )
    return np.split(answers, np.cumsum([len(own) for own in labels])[:-1])


def _start(
    old: ServerArtifacts, points: GraphPoints, roots: np.ndarray, is_later: np.ndarray
) -> np.ndarray:
    """The guess of S Y, float32 [n + m, C], as the module's docstring says; `roots` is D^1/2 [n + m]."""
    before = np.asarray(old.root_degrees)[: len(old.values), None]
    smooth = np.zeros((len(is_later), old.values.shape[1]), np.float32)
    smooth[~is_later] = old.values / np.where(before > 0, before, 1)
    near = points.indices[is_later]
    is_old = (near >= 0) & ~is_later[near]
    sums = (smooth[near] * is_old[..., None]).sum(axis=1)
    smooth[is_later] = sums / np.maximum(is_old.sum(axis=1, keepdims=True), 1)
    return roots[: len(smooth), None] * smooth
