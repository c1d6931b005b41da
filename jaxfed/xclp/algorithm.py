"""Cross-Client Label Propagation: Algorithm 1 of the paper, line by line.

Scott, Yeo, Lampert, "Cross-client Label Propagation for Transductive and Semi-Supervised Federated
Learning", TMLR 2023, https://openreview.net/forum?id=gYO4GX8R5k.

Clients j in P hold vectors V^(j) [n_j, d] and labels for some of them. Jointly, without sharing either,
they build one graph over all n = sum_j n_j points and propagate the labels over it. The comments in
`cross_client_label_propagation` are the paper's line numbers with its marks: CS client step, SS server
step, XS cross step. Cross steps are looked up by name (`cross_steps`), so a secure protocol
replaces a plaintext step without a change here. A run with protocols has one session of all parties. Every
message between parties goes through it, and clients may leave it at any message (`presence`).

Departures from the printed algorithm, each on purpose:
  * Line 7 keeps each row's k largest entries *other than its own*. As printed, the diagonal
    cos(0) = 1 would always be one of the k; the authors' code leaves it out as well. `self_edges` is
    the line as printed: weight 1 of a point with itself, twice in B + B^T, and k - 1 others.
  * Lines 5 to 7 stream: cos(pi h / L) falls with h, so the k largest cosines are the k smallest
    distances, and the n x n matrices H and A never exist. Ties go to the smaller index.
  * Negative similarities count as no edge (the paper's D^-1/2 needs non-negative degrees).
  * Line 10 forms no inverse, and line 12 may send no columns: `jaxfed.xclp.influence` has both ways.
    In the clear `Result.communication` counts columns either way, as the paper sends them.
  * A point that no label reaches has Z = 0; it gets label -1 and confidence 0, and is counted.
  * The conjugate gradient leaves components without labels exactly zero. Scores below zero count as
    zero: rounding leaves them (S has no negative entry), and estimates of randomized labels have them.

Switches that reproduce the authors' released code where it goes beyond the paper: `similarity_power=3`
(edge weights cubed), `label_matrix="class_balanced"` (Y's columns divided by the class's number of labels),
`relative_confidence` (confidences divided by the largest of the cohort). Default: the paper. Z is linear
in Y, so each client divides its rows of Z itself, by class counts that arrive with them.

An extension that the paper names as future work: `bit_epsilon` and `label_epsilon` randomize every client's
codes and labels before anything leaves it. The server and the clients correct the bias where they use them.
`jaxfed.privacy.randomized_response` states what each guarantees, and what it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.communication import Communication
from jaxfed.federation.departures import check_departures
from jaxfed.federation.execution import HERE, Execution
from jaxfed.host import processes
from jaxfed.kernels.devices.padding import padded_rows
from jaxfed.kernels.streaming import streamed_bits
from jaxfed.privacy import randomized_response
from jaxfed.xclp import departures
from jaxfed.xclp.calibration import calibrated
from jaxfed.xclp.cross_steps import PROJECTIONS, ROW_SUMS, largest_confidences, setup
from jaxfed.xclp.federated_selection import choose, most_of
from jaxfed.xclp.influence import INFLUENCE, Accuracy, warn_of_cut_short
from jaxfed.xclp.inputs import checked
from jaxfed.xclp.kept import Kept, KeptApart
from jaxfed.xclp.memory_plan import planned
from jaxfed.xclp.messages import count_messages, count_selection
from jaxfed.xclp.neighborhoods import Neighborhoods, rows_of
from jaxfed.xclp.own_scores import class_counts, client_scores, with_prior
from jaxfed.xclp.parameters import Parameters
from jaxfed.xclp.prediction import Prediction, predict
from jaxfed.xclp.selection import Choice

if TYPE_CHECKING:
    from jaxfed.secure.session.channel import Presence
    from jaxfed.secure.session.parties import Session

_NOISE = 0x6E6F6973  # separates the keys of noise from those of Pi's rows, 0 ... L - 1


class Result(NamedTuple):
    """One labeling of all clients.

    Fields:
        predictions: one `Prediction` a client, in the clients' order.
        unreached: number of points that no label reaches.
        steps: conjugate-gradient steps of the slowest column.
        residual: largest relative residual of any column, recomputed.
        communication: bytes that Algorithm 1 sends: codes and contributions up, influence columns and
            row sums down. With a secure protocol: every message that went through its channel. Labeling
            later points adds what they send.
        choice: the settings that `Parameters.select` has chosen; None without selection.
        kept: labeling artifacts, from which later points get labels (`jaxfed.xclp.out_of_sample`): the
            server's, or if a step is a protocol every party's, with the session; None without points.
    """

    predictions: list[Prediction]
    unreached: int
    steps: int
    residual: float
    communication: Communication
    choice: Choice[Parameters] | None = None
    kept: Kept | KeptApart | None = None


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
    p = parameters
    vectors, labels = checked(vectors, labels, p.num_classes)
    if client_ids is None and presence is None:  # a cohort is not the whole federation
        check_departures(departures.parsed(p.presence), len(vectors), "xclp.presence")
    draws = p.bit_epsilon > 0 or p.label_epsilon > 0 or p.projection == "group_secret"
    if draws and processes.are_several():
        raise UsageError(
            "bit_epsilon, label_epsilon and projection='group_secret' draw from the system, each process "
            "its own: allowed in a run of one process"
        )
    if not any(len(v) for v in vectors):
        return _no_labels(vectors, p, None)
    num_points, largest, plan = sum(map(len, vectors)), most_of(p), None
    most = min(largest.num_neighbors, num_points)  # further columns would hold no edges
    largest = replace(largest, num_neighbors=most)
    if execution.watches_memory:
        plan = planned(num_points, vectors[0].shape[1], largest, execution)
        execution.take(f"labeling of {num_points:,} points ({plan})", plan.num_bytes)
    session = open_session(
        range(len(vectors)) if client_ids is None else client_ids, p, presence
    )  # 1-XS
    if session and not session.clients:
        return _no_labels(vectors, p, session)
    planes = PROJECTIONS[p.projection](p.seed, largest.num_bits, vectors[0].shape[1], session)
    block_rows = plan.block_rows if plan else None
    codes = execution.once(client_codes, vectors, planes, block_rows=block_rows)  # 2-CS to 4-CS
    codes, labels = randomized(codes, labels, p, session)
    around = Neighborhoods(codes, labels, p, most, session, execution, plan)
    choice = choose(p, around, session, execution) if p.asks_labels else None
    p = choice.p if choice else p
    near = around.of(p.num_bits)  # 5-XS to 7-SS
    rows = near.rows
    if not len(near.indices):
        return _no_labels(vectors, p, session)
    matrix = around.matrix(p)  # 8-SS, 9-SS
    contributions = INFLUENCE[p.influence](  # 10-SS to 13-CS
        matrix, near.labels, rows, session, is_secure=p.row_sums != "plaintext"
    )
    counts = {j: class_counts(y, are_needed=p.needs_class_counts) for j, y in near.labels.items()}
    sums = ROW_SUMS[p.row_sums](contributions, counts, rows, session, execution)  # 14-XS
    unweighed = {j: client_scores(*own, p) for j, own in sums.items()}
    scores = {
        j: with_prior(z, near.labels[j].sum(axis=0), sums[j][1].sum(axis=0), p)
        for j, z in unweighed.items()
    }
    sharpness = choice.sharpness if choice else None
    predictions, largest_heard = client_predictions(  # 15-CS, 16-CS
        vectors, scores, p, session, sharpness
    )
    codes, planes = [own[:, : p.num_bits // 32] for own in codes], planes[: p.num_bits]
    kept: Kept | KeptApart
    if session:
        kept = KeptApart(
            session=session,
            planes=planes,
            codes={j: codes[j] for j in rows},
            noisy={j: {} for j in rows},
            labels=near.labels,
            largest=largest_heard,
            rows=rows,
            matrix=matrix,
            p=p,
        )
    else:
        kept = Kept(
            codes=codes,
            planes=planes,
            root_degrees=matrix.root_degrees,
            scores=np.concatenate(list(unweighed.values())),
            class_counts=np.stack([y.sum(axis=0) for y in near.labels.values()]),
            largest=max(largest_heard.values(), default=np.float32(0)),
            p=p,
        )

    accuracy = contributions.accuracy
    warn_of_cut_short(accuracy, choice.systems if choice else Accuracy(), p.tolerance)
    communication = session.communication() if session else Communication()
    count_messages(
        communication,
        num_clients=len(rows),
        num_labeled=(num_labeled := sum(int(np.sum(labels[client] >= 0)) for client in rows)),
        num_points=len(near.indices),
        sent_bits=largest.num_bits,
        p=p,
    )
    if choice:
        count_selection(
            communication, choice, num_clients=len(rows), num_labeled=num_labeled, p=parameters
        )
    return Result(
        predictions=predictions,
        unreached=sum(int(np.sum(prediction.labels < 0)) for prediction in predictions),
        steps=accuracy.steps,
        residual=accuracy.residual,
        communication=communication,
        choice=choice,
        kept=kept,
    )


def open_session(
    client_ids: Sequence[int], p: Parameters, presence: Presence | None
) -> Session | None:
    """Line 1, XS, if a step is a protocol: the parties agree on keys, the clients on a shared secret."""
    if not p.has_session:
        return None
    from jaxfed.secure.session.parties import (
        Session,  # here, because only protocols need its packages
    )

    if presence is None:
        presence = departures.presence_of(p.presence, client_ids, p.seed)
    return Session(len(client_ids), presence=presence)


def client_codes(
    vectors: Sequence[np.ndarray], planes: jax.Array, block_rows: int | None = None
) -> list[np.ndarray]:
    """Lines 2 to 4, CS: B^(j) = sign(Pi V^(j)T), packed, uint32 [n_j, L / 32] a client.

    A row depends on its own vector and on Pi alone, so one call over all clients' rows stands for the clients
    working in parallel. The vectors stay in memory or on disk. The device holds `block_rows` of them at a
    time, which does not change the result.
    """
    codes = streamed_bits(vectors, planes, block_rows=block_rows)
    return [codes[rows] for rows in rows_of([len(v) for v in vectors])]


def randomized(
    codes: list[np.ndarray], labels: list[np.ndarray], p: Parameters, session: Session | None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """CS: randomized response on each client's bits and labels, if `p` asks for it.

    With a session, the operating system draws the noise, and nobody can remove it. In a plaintext simulation
    it comes from the seed, with separate keys for bits and for labels. The noise of different points is
    independent, so one call over all points stands for the clients working in parallel.
    """
    if not (p.bit_epsilon or p.label_epsilon):
        return codes, labels
    bits: randomized_response.Draw = randomized_response.from_system
    answers: randomized_response.Draw = randomized_response.from_system
    if not session:
        keys = jax.random.split(jax.random.fold_in(setup(p.seed), _NOISE))
        bits, answers = map(randomized_response.from_key, keys)
    rows = rows_of([len(y) for y in labels])
    if p.bit_epsilon:
        joint = jnp.asarray(np.concatenate(codes))
        noisy = np.asarray(randomized_response.randomize_bits(joint, bits, p.bit_epsilon))
        codes = [noisy[own] for own in rows]
    if p.label_epsilon:
        answered = randomized_response.randomize_labels(
            np.concatenate(labels), answers, p.num_classes, p.label_epsilon
        )
        labels = [answered[own] for own in rows]
    return codes, labels


def client_predictions(
    vectors: Sequence[np.ndarray],
    scores: Mapping[int, np.ndarray],
    p: Parameters,
    session: Session | None,
    sharpness: float | None,
) -> tuple[list[Prediction], dict[int, np.float32]]:
    """Lines 15 and 16, CS: labels and confidences of every client's own rows of Z.

    A client without scores, because it has left, gets the predictions of unreached points. `sharpness`
    calibrates the confidences; None leaves them as line 16 defines them. Also returns the largest confidence
    of any point, as each client receives it; empty unless confidences are relative to it.
    """
    nothing = [np.zeros((len(v), p.num_classes), np.float32) for v in vectors]
    predictions = predicted([scores.get(j, own) for j, own in enumerate(nothing)], sharpness)
    if not p.relative_confidence:
        return predictions, {}
    own = {j: predictions[j].confidences.max(initial=0) for j in scores}
    largest = largest_confidences(own, session)
    nobody = predicted(nothing)
    return [
        prediction._replace(confidences=prediction.confidences / (largest[j] or np.float32(1)))
        if j in largest
        else nobody[j]
        for j, prediction in enumerate(predictions)
    ], largest


def predicted(scores: Sequence[np.ndarray], sharpness: float | None = None) -> list[Prediction]:
    """Predictions of all clients in one call; `sharpness` calibrates confidences, None keeps line 16's."""
    z = np.concatenate(scores)
    labels, confidences = predict(jnp.asarray(padded_rows(z)))
    if sharpness is not None:
        confidences = calibrated(z, sharpness)
    arrays = [np.asarray(values) for values in (labels, confidences, z)]
    return [
        Prediction(*(values[own] for values in arrays)) for own in rows_of(list(map(len, scores)))
    ]


def _no_labels(vectors: Sequence[np.ndarray], p: Parameters, session: Session | None) -> Result:
    """Result of a labeling without points: no client has any, or all clients have left."""
    communication = session.communication() if session else Communication()
    nothing = [np.zeros((len(v), p.num_classes), np.float32) for v in vectors]
    unreached = sum(len(v) for v in vectors)
    return Result(predicted(nothing), unreached, 0, 0.0, communication)
