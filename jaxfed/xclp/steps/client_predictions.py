"""Lines 15 and 16 of Algorithm 1, client steps: every client's own labels and confidences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from jaxfed.kernels.devices import padded_rows
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.calibration import calibrated
from jaxfed.xclp.steps.codes import rows_of
from jaxfed.xclp.steps.prediction import Prediction, predict
from jaxfed.xclp.steps.row_sums import Scores

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


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
