"""Pseudo-labels of XCLP within a round of training on a network: lines 6 and 7 of Algorithm 2.

    step      the server sends     client j                                       client j replies
    "embed"   `Request`            computes V^(j) by the model, and keeps it      number of its points
    letters of a session           takes part in Algorithm 1                      frames
    "end"     its masked sums      keeps its labels and confidences, forgets V^(j)

Then it trains on them (`jaxfed.training.round.network`). Its labels never leave it. A client that
leaves the labeling has left the round. The session is that of `jaxfed.xclp.network`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.federation.algorithm import Ask, ClientSide
from jaxfed.federation.clients import UNLABELED, Federation
from jaxfed.federation.cohort import Cohort, arranged, own_examples
from jaxfed.federation.communication import Communication
from jaxfed.secure.session.network import exchanges
from jaxfed.training.pseudo_labels.propagated_labels import XclpLabels
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabel, PseudoLabels, completed
from jaxfed.training.round.network import (
    AFTER_MEAN,
    EMBED,
    UPDATE,
    LabeledByClients,
    Request,
    TrainingClient,
    client_view,
)
from jaxfed.training.server_state import ServerState
from jaxfed.xclp.network import check_points, labeled_by_clients, take_part
from jaxfed.xclp.steps.codes import drawn_seed

SIZE = {"points": 0}
NO_LABELS = {
    **exchanges.NO_SESSION,
    **dict.fromkeys(("vectors", "given", "point", "label", "confidence"), b""),
}


def no_labels(
    state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
) -> PseudoLabels:
    """Return the given labels alone; stands for a client's labels where they are not known."""
    del state, key, communication
    y = jnp.asarray(cohort.y)
    return completed(cohort, jnp.full(y.shape, UNLABELED), jnp.zeros(y.shape))


def labeled_jointly(
    source: XclpLabels,
    ask: Ask,
    federation: Federation,
    state: ServerState,
    cohort: Cohort,
    key: jax.Array,
    communication: Communication,
) -> LabeledByClients:
    """Have the clients label their examples by XCLP; who leaves is no part of the round."""
    p = replace(source.parameters, seed=drawn_seed(key))
    number, message = int(state.round) + 1, _embed(state, key)
    asked = {int(client): message for client in np.asarray(cohort.client_id) if client >= 0}
    check = partial(check_points, federation)
    points = ask(EMBED, asked, SIZE, round_number=number, check=check)
    ids = list(points)
    found = labeled_by_clients(
        len(ids),
        exchanges.carried(ask, ids, {"round": number, "seed": p.seed}),
        {address: points[client]["points"] for address, client in enumerate(ids)},
        p,
        source.execution,
    )
    communication.add(found.communication)
    metrics = {"steps": found.accuracy.steps, "residual": found.accuracy.residual}
    return LabeledByClients(key, metrics, frozenset(ids[address] for address in found.clients))


def _embed(state: ServerState, key: jax.Array) -> Request:
    return Request(state.model, (), state.round, (), jax.random.key_data(key[None]))


@dataclass(frozen=True, eq=False)
class JointlyLabelingClient:
    """A client that labels with the others, by the simulation's `source`, then trains."""

    training: TrainingClient
    source: XclpLabels

    @property
    def side(self) -> ClientSide:
        """The functions of a client."""
        return ClientSide(self.init, self.answer, self.form, self.stored)

    def init(self, key: jax.Array, federation: Federation) -> dict[str, Any]:
        """Return the client's state before its first round."""
        return {**NO_LABELS, "training": self.training.init(key, federation)}

    def stored(self, key: jax.Array, federation: Federation) -> dict[str, Any]:
        """Return the form of a state."""
        form = jax.eval_shape(lambda: self.training.init(key, federation))
        return {**NO_LABELS, "training": form}

    def form(self, step: str, federation: Federation) -> Any:
        """Return the form of a request."""
        if step in (UPDATE, *AFTER_MEAN):
            return self.training.form(step, federation)
        if step != EMBED:
            return exchanges.REQUEST
        key = jax.random.key(0)
        return jax.eval_shape(lambda: _embed(self.training.init_server(key, federation), key))

    def answer(
        self, step: str, own: Mapping[str, Any], request: Any, cohort: Cohort
    ) -> tuple[dict[str, Any], Any]:
        """Return the new state and the reply; a letter that does not belong to it is a ProtocolError."""
        if step in (UPDATE, *AFTER_MEAN):
            source = self._labels_of(own, request) if step == UPDATE else None
            after, reply = self.training.answer(step, own["training"], request, cohort, source)
            return {**own, "training": after}, reply
        if step == EMBED:
            return self._embedded(own, request, cohort)
        [number] = exchanges.terms_of(request, "round")
        point = np.frombuffer(own["point"], np.uint8).astype(bool)
        if not len(point) or own["round"] != number:
            raise ProtocolError(f"step {step!r} of round {number} without points of that round")
        given = np.frombuffer(own["given"], np.int32)
        vectors = np.frombuffer(own["vectors"], np.float32).reshape(len(given), -1)
        client, kept, frames = take_part(self.source.parameters, step, own, request, vectors, given)
        if step == exchanges.END:
            found = client.prediction()
            label = np.full(len(point), UNLABELED, np.int32)
            confidence = np.zeros(len(point), np.float32)
            label[point], confidence[point] = found.labels, found.confidences
            kept |= {"round": number, "vectors": b"", "given": b"", "point": b""}
            kept |= {"label": label.tobytes(), "confidence": confidence.tobytes()}
        return {**own, **kept}, {"frames": frames}

    def _embedded(
        self, own: Mapping[str, Any], request: Request, cohort: Cohort
    ) -> tuple[dict[str, Any], Any]:
        """Keep the points of the graph, and forget earlier labels."""
        [key] = jax.random.wrap_key_data(jnp.asarray(request.keys))
        state = client_view(request, own["training"])
        entered = self.source.points(state, arranged(cohort), key)
        point = np.asarray(entered.mask)[0]
        [x], y = own_examples(entered.x), np.asarray(entered.y)[0]
        vectors = np.asarray(x[: len(point)][point], np.float32)
        after = {
            **NO_LABELS,
            "training": own["training"],
            "round": int(request.round) + 1,
            "vectors": vectors.tobytes(),
            "given": y[point].astype(np.int32).tobytes(),
            "point": point.astype(np.uint8).tobytes(),
        }
        return after, {"points": len(vectors)}

    def _labels_of(self, own: Mapping[str, Any], request: Any) -> PseudoLabel | None:
        """Return the labeling of a round by what the client has kept; None in the first stage."""
        if self.training.parts.stage(int(request.round)) == 1:
            return None
        if own["round"] != int(request.round) + 1 or not own["label"]:
            raise ProtocolError("training without labels of the round")
        found = np.frombuffer(own["label"], np.int32), np.frombuffer(own["confidence"], np.float32)

        def labels(
            state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
        ) -> PseudoLabels:
            del state, key, communication
            return completed(cohort, *(values[None] for values in found))

        return labels
