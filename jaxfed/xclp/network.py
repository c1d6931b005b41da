"""XCLP over a network: the server's and a client's side of a labeling, each in a separate process.

An `Ask` (`jaxfed.federation.algorithm`) sends the messages; this file knows no transport. Steps are those of
a simulation with protocols. In place of the clients' codes and labels the server has zeros of their shapes,
which its parts of the protocols do not read.

    exchange            clients send                                    the server sends before it
    join                public keys, number of points                   the session, the seed of Pi
    give_group_secret   the group secret, sealed for each other         all public keys
    send_own            distances among own points; hidden points and   the group secret
                        shares of distances
    send_positions      which points have labels                        -
    upload              masked contributions                            columns of S
    end                 nothing                                         masked sums

That is six exchanges with `row_sums="masked"`; double masks take three or four more. The session is that of
`jaxfed.secure.session.exchanges`; its terms also have the seed of Pi, and a reply the number of
the client's points. A client's party answers a message by

    client, kept, frames = take_part(p, step, state, request, vectors, labels)

and has its labels after the last one, `client.prediction()`. One-shot XCLP (`on_network`) stores them.
Until then the client's state has a hash of its examples, because other examples would give other messages
under the same masks.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.data.dataset import UNLABELED
from jaxfed.errors import ProtocolError, UsageError
from jaxfed.federation.algorithm import Ask, ClientSide, Init, Metrics, OnNetwork, Round, Unusable
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import Execution
from jaxfed.kernels.conjugate_gradient import PropagationMatrix
from jaxfed.secure import cross_steps
from jaxfed.secure.hamming import masked, matrix
from jaxfed.secure.primitives import prg
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.row_sums.server_sums import CLIENT_STEPS
from jaxfed.secure.session import exchanges
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.remote_session import Carry, RemoteSession
from jaxfed.secure.session.replayed_party import ReplayedParty, Role
from jaxfed.xclp.inputs import checked
from jaxfed.xclp.one_shot.transduction import client_arrays
from jaxfed.xclp.selection.choice import largest_settings
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.codes import client_codes, drawn_seed, projection_of_seed
from jaxfed.xclp.steps.contributions import ColumnsClient, contributions_by_columns
from jaxfed.xclp.steps.knn_graph import KnnGraphs, one_hot_labels
from jaxfed.xclp.steps.prediction import Prediction, predicted
from jaxfed.xclp.steps.propagation_matrix import SolverAccuracy, warn_of_solution
from jaxfed.xclp.steps.row_sums import class_counts, client_scores, with_prior

DISTANCES, CODES, COLUMNS, SUMS = "own", "codes", "columns", "sums"


def take_part(
    p: Parameters,
    step: str,
    state: Mapping[str, Any],
    request: Mapping[str, Any],
    vectors: np.ndarray,
    labels: np.ndarray,
    *,
    random_bytes: RandomBytes = secrets.token_bytes,
) -> tuple[LabelingClient, dict[str, Any], bytes]:
    """Answer one call message of a labeling, of the exchange `step`.

    Args:
        state: of the client, with the fields of `exchanges.NO_SESSION`.
        vectors: V^(j), [n_j, d]; the same ones in all exchanges.
        labels: int [n_j], -1 where unlabeled.
        random_bytes: source of the bytes that the client's party is replayed from.

    Returns:
        The client, the fields of its new state except "round", and the frames of its reply.

    Raises:
        ProtocolError: a message that does not belong to the state.
    """
    address, seed = exchanges.terms_of(request, "address", "seed")
    client: LabelingClient

    def party_of(drawn: bytes) -> ReplayedParty:
        nonlocal client
        client = LabelingClient(vectors, labels, replace(p, seed=seed), address, drawn)
        return client.party

    kept, frames = exchanges.answered(step, state, request, party_of, random_bytes=random_bytes)
    return client, kept, frames


class LabelingClient:
    """A client during one labeling; `p` has the seed of Pi, `seed` are 32 random bytes of its own."""

    def __init__(
        self, vectors: np.ndarray, labels: np.ndarray, p: Parameters, address: int, seed: bytes
    ) -> None:
        [self._vectors], [client_labels] = checked([vectors], [labels], p.num_classes)
        self._labels, self._p = one_hot_labels(client_labels, p.num_classes), p
        self.party = ReplayedParty(address, seed, self._roles())

    @cached_property
    def codes(self) -> np.ndarray:
        """B^(j), uint32 [n_j, L / 32]; after setup."""
        p, dim = self._p, self._vectors.shape[1]
        if not len(self._vectors):
            return np.zeros((0, p.num_bits // 32), np.uint32)
        if p.projection == "group_secret":
            assert self.party.endpoint is not None
            secret = self.party.endpoint.group_seed("xclp/projection")
            planes = jnp.asarray(prg.hyperplanes(secret, p.num_bits, dim))
        else:
            planes = projection_of_seed(p.seed, p.num_bits, dim, None)
        return client_codes([self._vectors], planes)[0]

    def prediction(self) -> Prediction:
        """Labels, confidences and scores of its points; -1 and zeros if it did not receive its sums."""
        p, sums = self._p, self.party.results.get((SUMS, "finish"))
        z = np.zeros((len(self._vectors), p.num_classes), np.float32)
        if sums is not None:
            values, cohort = (part.astype(np.float32) for part in (sums[: len(z)], sums[len(z) :]))
            z = client_scores(values, cohort, p)
            z = with_prior(z, self._labels.sum(axis=0), cohort.sum(axis=0), p)
        return predicted([z])[0]

    def _roles(self) -> dict[str, Role]:
        def role(
            constructor: Callable[..., Any], client_input: Callable[[], Any], steps: Any, *plan: str
        ) -> Role:
            return Role(constructor, lambda _: client_input(), frozenset(steps), frozenset(plan))

        return {
            DISTANCES: role(matrix.OwnDistances, lambda: self.codes, ["send_own"]),
            CODES: role(
                masked.Client, lambda: self.codes, ["send_points", "send_shares"], "sizes", "run"
            ),
            COLUMNS: role(
                self._columns_client,
                lambda: self._labels,
                ["send_positions", "receive_columns", "finished"],
                "num_points",
            ),
            SUMS: role(
                self._sums_client,
                self._contribution,
                CLIENT_STEPS,
                *("rows", "is_resilient", "signed", "shorter"),
            ),
        }

    def _contribution(self) -> tuple[np.ndarray, np.ndarray]:
        if (COLUMNS, "finished") not in self.party.results:
            raise ProtocolError("row sums before the columns")
        assert self.party.endpoint is not None
        limit = FixedPoint(len(self.party.endpoint.clients)).largest
        if self._columns.reach.max(initial=0) > 0.99 * limit:
            # Uploads refuse larger sums. Their failure would tell the server which labels are equal.
            raise ProtocolError("columns of S that row sums cannot hold, whatever the labels")
        counts = class_counts(self._labels, are_needed=self._p.needs_class_counts)
        return self.party.results[COLUMNS, "finished"], counts

    def _columns_client(self, endpoint: Any, client_input: Any, **plan: Any) -> ColumnsClient:
        self._columns = ColumnsClient(endpoint, client_input, **plan)
        return self._columns

    def _sums_client(self, endpoint: Any, client_input: Any, **plan: Any) -> Any:
        name = self._p.row_sums
        wanted = name != "masked", name == "masked_resilient_signed"
        if (plan["is_resilient"], plan["signed"]) != wanted:
            raise ProtocolError("row sums by another protocol than the settings say")
        rows = plan["shorter"].get(endpoint.address)
        if rows is None or rows.stop - rows.start != len(self._vectors):
            raise ProtocolError("row sums with other rows than this client's")
        return cross_steps.client_with_totals(endpoint, client_input, **plan)


_ROLES: dict[Callable[..., Any], str] = {
    matrix.OwnDistances: DISTANCES,
    masked.Client: CODES,
    ColumnsClient: COLUMNS,
    cross_steps.client_with_totals: SUMS,
}
_NEEDED = {  # setting -> values that run on a network, and what to write
    "hamming": (("masked",), "use 'masked'"),
    "row_sums": (
        ("masked", "masked_resilient", "masked_resilient_signed"),
        "use 'masked', 'masked_resilient' or 'masked_resilient_signed'",
    ),
    "compared_clients": ((0,), "use 0: clients are told of all pairs beforehand"),
    "influence": (("columns",), "use 'columns'"),
    "center": ((False,), "use False"),
    "head": (("none",), "use 'none'"),
    "select": (((),), "give the settings themselves, alpha too: ()"),
    "confidence": (("entropy",), "use 'entropy'"),
    "bit_epsilon": ((0,), "use 0"),
    "label_epsilon": ((0,), "use 0"),
    "presence": (((),), "use (): clients of a network leave by themselves"),
}


class NetworkLabeling(NamedTuple):
    """Outcome of a labeling at the server; `clients` are the addresses that have answered to the end."""

    clients: list[int]
    accuracy: SolverAccuracy
    communication: Communication


def check_points(federation: Federation, client: int, reply: Mapping[str, Any]) -> None:
    """Raise `Unusable` if a client joins with fewer than 0 points, or more than it registered."""
    assert federation.census is not None
    if not 0 <= reply["points"] <= federation.census.examples[client]:
        most = federation.census.examples[client]
        raise Unusable(f"{reply['points']} points; the client registered {most} examples")


def check_network(p: Parameters) -> None:
    """Raise a UsageError with each setting that does not run on a network, and what to write."""
    wrong = [
        UsageError(key=key, owner="xclp", value=value, allowed=allowed)
        for key, (values, allowed) in _NEEDED.items()
        if (tuple(value) if isinstance(value := getattr(p, key), list) else value) not in values
    ]
    if wrong:
        first, *others = wrong
        first.wrong = "does not run on a network"
        first.allowed = "; ".join([first.allowed, *map(str, others)])
        raise first


def labeled_by_clients(
    num_clients: int, carry: Carry, sizes: Mapping[int, int], p: Parameters, execution: Execution
) -> NetworkLabeling:
    """Run the server's side of one labeling, to which `num_clients` are invited.

    `carry` exchanges messages for frames, and fills in `sizes`, numbers of points by address, with the first
    answers.
    """
    accuracy = SolverAccuracy()
    session = RemoteSession(num_clients, carry, _ROLES)
    known = [sizes[j] if j in session.clients else 0 for j in range(num_clients)]
    if sum(known):
        accuracy = _exchanged(session, known, p, execution)
    clients = session.clients
    if clients:
        session.later_all(clients)
        clients = session.flush(exchanges.END)
    return NetworkLabeling(clients, accuracy, session.communication())


def _exchanged(
    session: RemoteSession, sizes: list[int], p: Parameters, execution: Execution
) -> SolverAccuracy:
    """Run lines 5 to 16 with the clients of a session; the last quiet steps are not sent."""
    largest = largest_settings(p, sum(sizes))
    codes = [np.zeros((size, p.num_bits // 32), np.uint32) for size in sizes]
    labels = [np.full(size, UNLABELED, np.int32) for size in sizes]
    graphs = KnnGraphs(codes, labels, largest, session, execution)
    points = graphs.points(p.num_bits)
    p = replace(p, num_neighbors=largest.num_neighbors)
    if not len(points.indices):
        return SolverAccuracy()
    columns = PropagationMatrix(graphs.graph(p), p.alpha, p.tolerance, p.max_steps)
    contributions = contributions_by_columns(columns, points.labels, points.rows, session)
    counts = class_counts(np.zeros((0, p.num_classes), np.float32), are_needed=p.needs_class_counts)
    cross_steps.sums_and_totals(
        session,
        contributions.values,
        dict.fromkeys(points.rows, counts),
        points.rows,
        resilient=p.row_sums != "masked",
        signed=p.row_sums == "masked_resilient_signed",
        progress=execution.counting("uploads for row sums"),
    )
    warn_of_solution(contributions.accuracy, SolverAccuracy(), p)
    return contributions.accuracy


NO_STATE = {**exchanges.NO_SESSION, "examples": b"", "label": b"", "confidence": b""}
_REPLY = {**exchanges.REPLY, "points": 0}


class ServerState(NamedTuple):
    """The server's state: rounds done, and `Transduction`'s label and confidence, [0, 0] without points."""

    label: np.ndarray
    confidence: np.ndarray
    round: np.ndarray


def on_network(parameters: Parameters, execution: Execution, late_fraction: float) -> OnNetwork:
    """Server and client of one-shot XCLP.

    Raises:
        UsageError: `late_fraction` is above 0: points would come after the graph is made.
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
            labeling = labeled_by_clients(len(ids), carry, sizes, p, execution)
            return state._replace(round=state.round + 1), {
                "labeled_clients": len(labeling.clients),
                "steps": labeling.accuracy.steps,
                "residual": labeling.accuracy.residual,
                "communication": labeling.communication.metrics(),
            }

        return init, round_

    def answer(step: str, state: Any, request: Any, cohort: Cohort) -> tuple[Any, Any]:
        check_network(parameters)  # a client adds no noise of `bit_epsilon`
        return answered(parameters, step, state, request, cohort)

    return OnNetwork(
        server,
        ClientSide(
            lambda key, federation: NO_STATE,
            answer,
            lambda step, federation: exchanges.REQUEST,
            lambda key, federation: NO_STATE,
            labels=_labels_of,
        ),
    )


def _labels_of(state: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
    if not state["label"]:
        return None
    return np.frombuffer(state["label"], np.int32), np.frombuffer(state["confidence"], np.float32)


def answered(
    parameters: Parameters,
    step: str,
    state: Mapping[str, Any],
    request: Mapping[str, Any],
    cohort: Cohort,
    *,
    random_bytes: RandomBytes = secrets.token_bytes,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answer one call message of a labeling; returns the new state and the reply.

    Raises:
        ProtocolError: a message that does not belong to the state, or examples that have changed.
    """
    [vectors], [labels] = client_arrays(cohort)
    examples = hashlib.sha256(
        np.ascontiguousarray(vectors).tobytes() + np.ascontiguousarray(labels).tobytes()
    ).digest()
    [number] = exchanges.terms_of(request, "round")
    if state["round"] != number:  # another session: nothing of the old one is used again
        state = {**state, **exchanges.NO_SESSION}
    elif examples != state["examples"]:
        raise ProtocolError("the client's examples have changed within a session")
    client, kept, frames = take_part(
        parameters, step, state, request, vectors, labels, random_bytes=random_bytes
    )
    reply = {"frames": frames, "points": len(vectors)}
    if step != exchanges.END:
        return {**state, **kept, "round": number, "examples": examples}, reply
    prediction = client.prediction()
    stored = {"label": prediction.labels.tobytes(), "confidence": prediction.confidences.tobytes()}
    return {**NO_STATE, **stored}, reply
