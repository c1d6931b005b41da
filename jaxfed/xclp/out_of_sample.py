"""Labels for points that come after the graph was made: by their k nearest codes in it, no system solved.

A later point x is one more row of line 10's system. It lists its k nearest among the n points of the graph,
as line 7 has it; nobody lists x, and everybody else's row is left as it is. Then, Y_x being 0,

    Z_x = alpha sum_l W_xl Z_l,    W_xl = b_xl / sqrt(d_x d_l),    d_x = sum_l b_xl              line 10

with b_xl = max(cos(pi h_xl / L), 0)^similarity_power of the listed l, and degrees d_l of the graph. (With
self_edges x lists itself and k - 1 others; Z_x is then as much larger as its own row says.)

It is the induction formula of Delalleau, Bengio, Le Roux, "Efficient Non-Parametric Function Induction in
Semi-Supervised Learning", AISTATS 2005, which minimizes the same energy over x alone, all else fixed; with
XCLP's normalization in place of theirs. A point that has no label and that nobody lists gets its own Z
back where it is taken out of the graph and asked for; one that is still in the list is its own nearest.
What it does not know is what the later points would have told: they are no stations between others, and of
many of them, far from all old ones, a new labeling knows more.

What leaves whom. In the clear the client with x sends its codes, and the server, which has all codes of the
graph and Z, answers with Z_x, of which lines 15 and 16 are made: L / 8 bytes up and 4 C down a point. The
client need not have taken part; it needs Pi. It learns a mixture of at most k points' scores: with points
of its own choice it can ask for single points of others, as with every method that answers for any input.
With `bit_epsilon` later codes are randomized, too: a code has the same noise whenever it is asked for,
another code another.

Through protocols nobody has codes and Z together, and each party keeps what it has (`jaxfed.xclp.kept`). The
labeling's session stays open; lines 5 to 16 are gone through once more for the later points alone, by the
same protocols (`jaxfed.xclp.later_rows`). Labels are those in the clear:

    line   who               sees
    5      server            distances of later points to the graph's; with "plaintext" their codes
    5      clients           nothing
    12     server            `positions` once more
    12     client j          with influence="columns": how far its labels reach each later point of everybody
    14     client j          Z_x of its own later points, and counts of labels as in the labeling
    all    everybody         how many later points each client has

Everything else is as in the labeling: masks, transfers and keys are of a run of their own. All clients that
took part have to be there, those without later points too: each brings its codes and labels again. Who has
left since the labeling, or leaves meanwhile, has no say (its labels do not count, though its points stay
stations between others), its points of the graph are no neighbors if it left before or in line 5, and it
gets unreached predictions. Noise of `bit_epsilon` is the operating system's, and a client remembers that of
each code; labels under `label_epsilon` are the answers that were given, so that neither costs more of a
budget. Who has not taken part has no keys with the others, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.execution import HERE, Execution
from jaxfed.kernels.padding import padded_rows
from jaxfed.privacy import randomized_response
from jaxfed.xclp.algorithm import Result, client_codes, predicted
from jaxfed.xclp.cross_steps import IN_GRAPH, setup
from jaxfed.xclp.influence import Accuracy, warn_of_cut_short
from jaxfed.xclp.inputs import checked
from jaxfed.xclp.kept import Kept, KeptApart
from jaxfed.xclp.later_rows import later_scores, with_noise
from jaxfed.xclp.messages import count_later
from jaxfed.xclp.mixture import mixture
from jaxfed.xclp.neighborhoods import rows_of
from jaxfed.xclp.own_scores import with_prior
from jaxfed.xclp.parameters import Parameters
from jaxfed.xclp.prediction import UNLABELED, Prediction

_NOISE = 0x6C617465  # sets their noise apart from that of the graph's points


def label_later(
    result: Result,
    vectors: Sequence[np.ndarray],
    p: Parameters,
    execution: Execution = HERE,
) -> list[Prediction]:
    """Label points that were not there when a labeling was made.

    Args:
        result: of `jaxfed.xclp.cross_client_label_propagation`. Its `communication` gets what is sent.
        vectors: one float [m_j, d] array a client: the labeling's clients in their order; fewer arrays: the
            rest has none. With plaintext steps newcomers may come after them, and which is which matters for
            `client_prior` alone; newcomers have the cohort's.
        p: the settings that the labeling was given.
        execution: worker processes, and who is told of progress; no influence on the result.

    Returns:
        One `Prediction` for each of the arrays. Label -1, confidence 0: none of a point's neighbors has a
        label within reach, or the client has left. A point's prediction does not depend on which others are
        asked for with it.

    Raises:
        UsageError: newcomers where a step is a protocol; vectors that are not finite or of another d.

    Cost: m (d L + n L / 64 + n k) operations, 4 n bytes for each of 256 points; through a session what
    `jaxfed.xclp.later_rows` says, whatever m is.
    """
    nobody = [np.full(np.shape(v)[:1], UNLABELED) for v in vectors]
    vectors, _ = checked(vectors, nobody, p.num_classes)
    _check_clients(result, vectors, p)
    scores = [np.zeros((len(v), p.num_classes), np.float32) for v in vectors]
    largest = [np.float32(1)] * len(vectors)
    kept, accuracy = result.kept, Accuracy()
    if kept is not None and any(len(v) for v in vectors):
        if isinstance(kept, KeptApart):
            codes = _codes_of_parties(kept, vectors)
            found, accuracy = later_scores(kept, codes, execution, result.communication)
            scores = [found.get(j, own) for j, own in enumerate(scores)]
            largest = [kept.largest.get(j, own) for j, own in enumerate(largest)]
        else:
            scores = _of_clients(kept, vectors, execution)
            largest = [kept.largest] * len(vectors)
            count_later(result.communication, sum(map(len, vectors)), kept.p)
    warn_of_cut_short(accuracy, Accuracy(), p.tolerance)
    predictions = predicted(scores, result.choice.sharpness if result.choice else None)
    if not p.relative_confidence:
        return predictions
    return [
        own._replace(confidences=np.minimum(own.confidences / (most or np.float32(1)), 1))
        for own, most in zip(predictions, largest, strict=True)
    ]


def _check_clients(result: Result, vectors: Sequence[np.ndarray], p: Parameters) -> None:
    """Refuse vectors of another d, and of somebody who would need keys."""
    dim, num_clients = vectors[0].shape[1], len(result.predictions)
    if result.kept is not None and dim != (allowed := result.kept.planes.shape[1]):
        raise UsageError(
            f"labels for later points: vectors have {dim} entries; allowed are {allowed}, as in the graph"
        )
    if p.has_session and len(vectors) > num_clients:
        raise UsageError(
            f"labels for later points: {len(vectors)} clients, of which {num_clients} took part in the "
            f"labeling: with xclp.hamming={p.hamming!r}, xclp.row_sums={p.row_sums!r} newcomers have no keys "
            "with the others"
        )


def _codes_of_parties(kept: KeptApart, vectors: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """CS: codes of the later points of all clients that are still there, with their noise."""
    all_codes = client_codes(vectors, kept.planes)
    nothing = all_codes[0][:0]
    codes = {
        j: all_codes[j] if j < len(vectors) else nothing
        for j in kept.rows
        if j in kept.session.clients
    }
    epsilon = kept.p.bit_epsilon
    if not epsilon:
        return codes
    return {j: with_noise(own, kept.noisy[j], epsilon) for j, own in codes.items()}


def _of_clients(
    kept: Kept, vectors: Sequence[np.ndarray], execution: Execution
) -> list[np.ndarray]:
    """Z of later points, f32 [m_j, C] a client, weighed by its own prior; of newcomers by the cohort's."""
    z = _extended(kept, vectors, execution)
    parts = [z[rows] for rows in rows_of([len(v) for v in vectors])]
    cohort = kept.class_counts.sum(axis=0)
    known = [*kept.class_counts, *(np.zeros_like(cohort) for _ in vectors)]
    return [with_prior(part, own, cohort, kept.p) for part, own in zip(parts, known, strict=False)]


def _extended(kept: Kept, vectors: Sequence[np.ndarray], execution: Execution) -> np.ndarray:
    """Z of later points without the client prior, f32 [m, C]."""
    p, codes = kept.p, client_codes(vectors, kept.planes)
    if p.bit_epsilon:
        key, joint = jax.random.fold_in(setup(p.seed), _NOISE), np.concatenate(codes)
        draw = randomized_response.from_content(key, joint)
        noisy = randomized_response.randomize_bits(jnp.asarray(joint), draw, p.bit_epsilon)
        codes = [np.asarray(noisy)]
    _, indices, distances = IN_GRAPH["plaintext"](
        dict(enumerate(codes)),
        dict(enumerate(kept.codes)),
        None,
        execution,
        num_neighbors=p.num_neighbors - p.self_edges,
        key_bits=p.key_bits,
    )
    near = mixture(indices, distances, np.asarray(kept.root_degrees), p)
    return near.of(padded_rows(kept.scores))
