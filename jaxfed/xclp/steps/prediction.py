"""Lines 15 and 16 of Algorithm 1, client steps: from class scores to labels and confidences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels.devices.padding import padded_rows
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.calibration import calibrated
from jaxfed.xclp.steps.codes import rows_of
from jaxfed.xclp.steps.row_sums import Scores

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session

UNLABELED = -1


class Prediction(NamedTuple):
    """Output of one client: `labels` int32 [n_j], `confidences` f32 [n_j], `scores` f32 [n_j, C]."""

    labels: np.ndarray
    confidences: np.ndarray
    scores: np.ndarray


@jax.jit
def predict(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """argmax_c Z_ic, and 1 - entropy(Z_i / sum_c Z_ic) / log C, for every row of Z.

    Args:
        scores: float32 [n, C]; entries below zero count as zero.

    Returns:
        labels int32 [n], ties to the smaller class, -1 for a row without a positive entry; confidences
        float32 [n] in [0, 1], 0 for such a row. With one class every reached point has confidence 1.
    """
    positive = jnp.maximum(scores, 0)
    total = positive.sum(axis=-1)
    reached = total > 0
    share = positive / jnp.where(reached, total, 1)[..., None]
    entropy = -jnp.sum(jax.scipy.special.xlogy(share, share), axis=-1)
    confidence = 1 - entropy / max(np.log(scores.shape[-1]), np.finfo(np.float32).tiny)
    label = jnp.argmax(positive, axis=-1).astype(jnp.int32)
    return (
        jnp.where(reached, label, UNLABELED),
        jnp.where(reached, jnp.clip(confidence, 0, 1), 0),
    )


def relative(confidences: jax.Array) -> jax.Array:
    """Confidences [n], n > 0, divided by the largest of them; zeros stay zeros."""
    largest = confidences.max()
    return confidences / jnp.where(largest > 0, largest, 1)


def client_predictions(
    vectors: Sequence[np.ndarray],
    scores: Mapping[int, Scores],
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
    z = [scores[j].weighted if j in scores else own for j, own in enumerate(nothing)]
    predictions = predicted(z, sharpness)
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


def largest_confidences(
    own: Mapping[int, np.float32], session: Session | None
) -> dict[int, np.float32]:
    """The largest of the clients' largest confidences, float32, at every client that stays.

    For `relative_confidence`, which is not in the paper. With a session, the server compares them.
    """
    if session is None:
        largest = max(own.values(), default=np.float32(0))
        return dict.fromkeys(own, largest)
    from jaxfed.secure import largest_value

    return largest_value.run(session, own)
