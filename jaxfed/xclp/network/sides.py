"""One-shot XCLP as a method of a network: a labeling is a session of letters.

The session (`jaxfed.secure.session.network.exchanges`) has the seed of Pi among its terms, and a reply the
number of the client's points. After the last exchange a client stores its labels. Until then its state has a
hash of its examples, because other examples would make other messages under the same masks.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.federation.algorithm import Init, Metrics, Round, Sides
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution.settings import Execution
from jaxfed.federation.sides import Ask, ClientSide
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.network import exchanges
from jaxfed.xclp.network.roles import take_part
from jaxfed.xclp.network.server_side import check_network, check_points, labeled_by_clients
from jaxfed.xclp.one_shot.transduction import client_arrays
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.projection import drawn_seed

NO_STATE = {**exchanges.NO_SESSION, "examples": b"", "label": b"", "confidence": b""}
_REPLY = {**exchanges.REPLY, "points": 0}


class ServerState(NamedTuple):
    """The server's state: it has no labels of clients' points.

    Fields:
        label, confidence: [0, 0], as in `Transduction`.
        round: rounds done.
    """

    label: np.ndarray
    confidence: np.ndarray
    round: np.ndarray


def labeling_sides(parameters: Parameters, execution: Execution, late_fraction: float) -> Sides:
    """Both sides of one-shot XCLP.

    Raises:
        UsageError: points come after the graph is made.
    """
    if late_fraction:
        raise UsageError(
            "does not run on a network", key="late_fraction", value=late_fraction, allowed="use 0"
        )

    def init(key: jax.Array, federation: Federation) -> ServerState:
        del key, federation
        return ServerState(
            np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32), np.zeros((), np.int32)
        )

    def server(ask: Ask, federation: Federation) -> tuple[Init, Round]:
        check_network(parameters)

        def round_(
            state: ServerState, cohort: Cohort, key: jax.Array
        ) -> tuple[ServerState, Metrics]:
            p = replace(parameters, seed=drawn_seed(key))
            ids = [int(client) for client in np.asarray(cohort.client_id) if client >= 0]
            sizes: dict[int, int] = {}  # by address

            def check(client: int, reply: Mapping[str, Any]) -> None:
                check_points(federation, client, reply)
                sizes.setdefault(ids.index(client), reply["points"])

            terms = {"round": int(state.round) + 1, "seed": p.seed}
            carry = exchanges.carried(ask, ids, terms, _REPLY, check)
            found = labeled_by_clients(len(ids), carry, sizes, p, execution)
            return state._replace(round=state.round + 1), {
                "labeled_clients": len(found.clients),
                "steps": found.accuracy.steps,
                "residual": found.accuracy.residual,
                "communication": found.communication.metrics(),
            }

        return init, round_

    def answer(step: str, own: Any, request: Any, cohort: Cohort) -> tuple[Any, Any]:
        check_network(parameters)  # a client adds no noise of `bit_epsilon`
        return answered(parameters, step, own, request, cohort)

    return Sides(
        server,
        ClientSide(
            lambda key, federation: NO_STATE,
            answer,
            lambda step, federation: exchanges.REQUEST,
            lambda key, federation: NO_STATE,
            labels=_labels_of,
        ),
    )


def _labels_of(own: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the stored labels and confidences."""
    if not own["label"]:
        return None
    return np.frombuffer(own["label"], np.int32), np.frombuffer(own["confidence"], np.float32)


def answered(
    parameters: Parameters,
    step: str,
    own: Mapping[str, Any],
    request: Mapping[str, Any],
    cohort: Cohort,
    *,
    random_bytes: RandomBytes = secrets.token_bytes,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answer one letter of a labeling; returns the new state and the reply.

    Raises:
        ProtocolError: a letter that does not belong to the state, or examples that have changed.
    """
    [vectors], [labels] = client_arrays(cohort)
    examples = hashlib.sha256(
        np.ascontiguousarray(vectors).tobytes() + np.ascontiguousarray(labels).tobytes()
    ).digest()
    [number] = exchanges.terms_of(request, "round")
    if own["round"] != number:  # another session, of which nothing serves again
        own = {**own, **exchanges.NO_SESSION}
    elif examples != own["examples"]:
        raise ProtocolError("the client's examples have changed within a session")
    client, kept, frames = take_part(
        parameters, step, own, request, vectors, labels, random_bytes=random_bytes
    )
    reply = {"frames": frames, "points": len(vectors)}
    if step != exchanges.END:
        return {**own, **kept, "round": number, "examples": examples}, reply
    found = client.prediction()
    stored = {"label": found.labels.tobytes(), "confidence": found.confidences.tobytes()}
    return {**NO_STATE, **stored}, reply
