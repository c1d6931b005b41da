"""One-shot XCLP as a method of a network: the steps of a labeling as messages of `jaxfed.federation.sides`.

    request   session   JSON: {"address": of the client in the session, "seed": of Pi, "round"}
              letter    bytes of `jaxfed.secure.session.letters`
    reply     frames    its packed frames
              points    n_j

The first exchange of a labeling is "join": the client draws 32 bytes from its operating system. After the
last one, "end", it stores its labels and forgets these bytes. A state in between serves one step only
(`once`): two continuations of it would seal two texts under one nonce. The state has a hash of the client's
examples, because other examples would make other messages under the same masks.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.federation.algorithm import Init, Metrics, Round, Sides
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution.settings import Execution
from jaxfed.federation.sides import Ask, ClientSide
from jaxfed.secure.session import letters
from jaxfed.xclp.network.roles import LabelingClient
from jaxfed.xclp.network.server_side import END, check_network, labeled_by_clients
from jaxfed.xclp.one_shot.transduction import client_arrays
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.projection import drawn_seed

JOIN = "join"
NO_STATE = {
    "once": False,
    "round": 0,
    "seed": b"",
    "past": b"",
    "examples": b"",
    "label": b"",
    "confidence": b"",
}
_REQUEST, _REPLY = {"session": "", "letter": b""}, {"frames": b"", "points": 0}


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
        capacity = federation.capacity

        def round_(
            state: ServerState, cohort: Cohort, key: jax.Array
        ) -> tuple[ServerState, Metrics]:
            p = replace(parameters, seed=drawn_seed(key))
            ids = [int(client) for client in np.asarray(cohort.client_id) if client >= 0]
            carried = _Carried(ask, ids, p.seed, int(state.round) + 1, capacity)
            found = labeled_by_clients(len(ids), carried, carried.sizes, p, execution)
            return state._replace(round=state.round + 1), {
                "labeled_clients": len(found.clients),
                "steps": found.accuracy.steps,
                "residual": found.accuracy.residual,
                "communication": found.communication.metrics(),
            }

        return init, round_

    def answer(step: str, own: Any, request: Any, cohort: Cohort) -> tuple[Any, Any]:
        return answered(parameters, step, own, request, cohort)

    return Sides(
        server,
        ClientSide(
            lambda key, federation: NO_STATE,
            answer,
            lambda step, federation: _REQUEST,
            NO_STATE,
        ),
    )


class _Carried:
    """Exchanges of one labeling through `ask`; `sizes` are filled in by the answers, by address."""

    def __init__(self, ask: Ask, ids: list[int], seed: int, number: int, capacity: int) -> None:
        self._ask, self._ids, self._seed, self._number = ask, ids, seed, number
        self._capacity = capacity
        self.sizes: dict[int, int] = {}

    def __call__(self, name: str, sent: Mapping[int, bytes]) -> Mapping[int, bytes]:
        requests = {
            self._ids[address]: {
                "session": json.dumps(
                    {"address": address, "seed": self._seed, "round": self._number}
                ),
                "letter": letter,
            }
            for address, letter in sent.items()
        }
        replies = self._ask(name, requests, _REPLY, round_number=self._number)
        addresses = {client: address for address, client in enumerate(self._ids)}
        answers = {}
        for client, reply in replies.items():
            if not 0 <= reply["points"] <= self._capacity:
                logging.warning(
                    "client %d is lost: it says it has %d points", client, reply["points"]
                )
                continue
            answers[addresses[client]] = reply["frames"]
            self.sizes.setdefault(addresses[client], reply["points"])
        return answers


def answered(
    parameters: Parameters,
    step: str,
    own: Mapping[str, Any],
    request: Mapping[str, Any],
    cohort: Cohort,
    *,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answer one letter of a labeling; returns the new state and the reply.

    Raises:
        ProtocolError: a letter that does not belong to the state, or examples that have changed.
    """
    [vectors], [labels] = client_arrays(cohort)
    examples = hashlib.sha256(
        np.ascontiguousarray(vectors).tobytes() + np.ascontiguousarray(labels).tobytes()
    ).digest()
    address, drawn, number = _session(request["session"])
    seed, past = own["seed"], letters.parsed(own["past"])
    if own["round"] != number:  # another session, of which nothing serves again
        seed, past = b"", []
    if step == JOIN and not past:
        seed = random_bytes(32)
    elif not past:
        raise ProtocolError(f"step {step!r} without a session that this client has joined")
    elif examples != own["examples"]:
        raise ProtocolError("the client's examples have changed within a session")
    p = replace(parameters, seed=drawn)
    client = LabelingClient(vectors, labels, p, address, seed)
    for before in past:
        client.party.play(before)
    frames = client.party.play(request["letter"])
    reply = {"frames": frames, "points": len(vectors)}
    kept = {"label": own["label"], "confidence": own["confidence"]}
    if step == END:
        found = client.prediction()
        kept = {"label": found.labels.tobytes(), "confidence": found.confidences.tobytes()}
        return {**NO_STATE, **kept}, reply
    session = {"once": True, "round": number, "seed": seed, "examples": examples}
    return {**session, "past": letters.packed([*past, request["letter"]]), **kept}, reply


def _session(text: str) -> tuple[int, int, int]:
    """Read the client's address, the seed of Pi, and the round.

    Raises:
        ProtocolError: there are none.
    """
    try:
        given = json.loads(text)
        address, seed, number = given["address"], given["seed"], given["round"]
    except (ValueError, TypeError, LookupError) as error:
        raise ProtocolError("a malformed session") from error
    if any(type(value) is not int or value < 0 for value in (address, seed, number)):
        raise ProtocolError("a malformed session")
    return address, seed, number
