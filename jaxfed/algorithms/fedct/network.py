"""FedCT over a network: both functions of a round with clients in processes of their own.

    step     the server sends                    client j replies
    "turn"   `turn_form`: L, weights, r, key     `reply_form`: its answers, unless they are summed under masks
    others   messages of a masked sum            its replies (`jaxfed.secure.session.exchanges`)

Answers are labels, or the bits of the XOR mechanism (`jaxfed.algorithms.fedct.round.packed`). A client also
reports whether it has answers, whether its learner failed, and the metrics of its fit.

The server has no model. What it can measure is the labels of U that clients agree on; the accuracy of a
client's model is the client's to measure. A client keeps its model, and answers one message at a time. Its
state has its row of the learner's state as the bytes of an .npz file, which holds arrays alone; estimators
are fitted again from it (`jaxfed.learners.refitting`). It keeps its summand of a sum under masks from its
turn to the last exchange of that round's session. Noise on labels comes from the operating system's
generator, so nobody else can remove it; in a simulation it comes from the seed, and there a run over a
network with noise differs.

Simulations do not use this file. It is independent of the transport: `jaxfed.federation.algorithm.Ask` sends.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.algorithms.fedct.round import (
    CoTraining,
    FedCTState,
    Sent,
    Turn,
    client_turn,
    server_round,
)
from jaxfed.errors import ProtocolError, UsageError
from jaxfed.federation.algorithm import Ask, ClientSide, Init, Metrics, OnNetwork, Round, Unusable
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.host.safe_files import array
from jaxfed.learners.client_fit import check_clients
from jaxfed.learners.evaluation import consensus_quality
from jaxfed.learners.learner import PublicTargets, State
from jaxfed.privacy import randomized_response as rr
from jaxfed.secure import vote_sums
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session import exchanges
from jaxfed.secure.session.remote_session import RemoteSession
from jaxfed.secure.session.replayed_party import ReplayedParty
from jaxfed.training.consensus import Attendance

TURN = "turn"
VOTES = "votes"  # role of a client in a session
NO_SUMMAND = {**exchanges.NO_SESSION, "tally": b""}
NO_STATE = {"model": b"", **NO_SUMMAND}


def turn_form(num_public: int) -> dict[str, Any]:
    """Return the form of the server's message at the start of a round.

    `label` and `weight` are of U, `rows` is r (0 without noise), `key` the data of the key of the fit.
    """
    return {
        "label": np.zeros(num_public, np.int32),
        "weight": np.zeros(num_public, np.float32),
        "rows": 0,
        "round": 0,
        "key": np.asarray(jax.random.key_data(jax.random.key(0))),
    }


def reply_form() -> dict[str, Any]:
    """Return the form of a client's reply.

    `speaks` is False if the client has no answers, `abstains` True if some of its labels are missing. Metrics
    are -1 where the learner has none.
    """
    return {
        "answers": b"",
        "speaks": False,
        "abstains": False,
        "failed": False,
        "clients": 0,
        "train_loss": 0.0,
        "fit_accuracy": 0.0,
    }


def on_network(settings: CoTraining, first: Callable[[Federation], FedCTState]) -> OnNetwork:
    """Return the method's server and client.

    Args:
        settings: of the method.
        first: federation -> the server's state before the first round.
    """

    def server(ask: Ask, federation: Federation) -> tuple[Init, Round]:
        _check_network(settings)
        clients = RemoteClients(settings, ask)

        def init(key: jax.Array, federation: Federation) -> FedCTState:
            del key
            return first(federation)

        def round(state: FedCTState, cohort: Cohort, key: jax.Array) -> tuple[FedCTState, Metrics]:
            return server_round(settings, clients, state, cohort, key)

        return init, round

    def placed(key: jax.Array, federation: Federation) -> ClientSide:
        return client._replace(answer=CoTrainingClient(settings, key, federation).answer)

    def nowhere(step: str, state: Any, request: Any, cohort: Cohort) -> tuple[Any, Any]:
        raise AssertionError("a client of FedCT needs its federation: `ClientSide.at`")

    client = ClientSide(
        lambda key, federation: NO_STATE,
        nowhere,
        lambda step, federation: (
            turn_form(len(settings.public)) if step == TURN else exchanges.REQUEST
        ),
        lambda key, federation: NO_STATE,
        placed,
    )
    return OnNetwork(server, client, consensus_quality)


def _check_network(settings: CoTraining) -> None:
    if settings.privacy.has_noise and settings.privacy.sensitivity == "estimated":
        raise UsageError(
            "does not run on a network",
            key="sensitivity",
            owner="fedct",
            value="estimated",
            allowed="use 'rows' or 'stability'",
        )
    if departures := settings.voting.departures():
        raise UsageError(
            "clients of a network leave by themselves",
            key="presence",
            owner="fedct",
            value=len(departures),
            allowed="use ()",
        )


@dataclass(frozen=True, eq=False)
class RemoteClients:
    """The clients of one run, reached by `ask` (`jaxfed.algorithms.fedct.round.Clients`)."""

    settings: CoTraining
    ask: Ask

    def turn(self, state: FedCTState, cohort: Cohort, key: jax.Array) -> Turn:
        """Return the outcome of `client_turn` at each client."""
        fit_key, *_ = jax.random.split(key, 3)
        number = int(state.round) + 1
        request = {
            "label": np.asarray(state.label),
            "weight": np.asarray(state.weight),
            "rows": int(state.rows),
            "round": number,
            "key": np.asarray(jax.random.key_data(fit_key)),
        }
        ids = np.sort(np.asarray(cohort.client_id, np.int32))
        requests = dict.fromkeys(ids[ids >= 0].tolist(), request)
        replies = self.ask(TURN, requests, reply_form(), round_number=number, check=self.check)
        sent = {
            client: Sent(replies[client]["answers"], replies[client]["abstains"], None)
            for client in requests
            if client in replies and replies[client]["speaks"]
        }
        voters = np.where(np.isin(ids, list(sent)), ids, -1).astype(np.int32)
        return Turn((), _mean_metrics(list(replies.values())), voters, sent, int(state.rows))

    def check(self, client: int, reply: Mapping[str, Any]) -> None:
        """Check the values of a client's reply.

        Raises:
            Unusable: answers or metrics that it cannot have computed.
        """
        del client
        if reply["clients"] not in (0, 1) or not -1 <= reply["fit_accuracy"] <= 1:
            raise Unusable("metrics of a fit that are out of their range")
        if self.settings.voting.sums == "plaintext" and reply["speaks"]:
            self.settings.unpacked(reply["answers"], abstains=reply["abstains"])
        elif reply["answers"]:
            raise Unusable("answers that were not asked for")

    def attendance(self, voters: np.ndarray) -> Attendance | None:
        """Return the voters, each of which may leave a sum under masks."""
        return None if self.settings.voting.sums == "plaintext" else Attendance(voters, [])

    @contextmanager
    def session(
        self, ids: Sequence[int], partners: int, round_number: int, attendance: Attendance | None
    ) -> Iterator[RemoteSession]:
        """Open a session, whose messages `ask` sends; it ends with an exchange of its own."""
        del attendance
        carry = exchanges.carried(self.ask, ids, {"round": round_number})
        role = server_sums.role_of(VOTES, len(ids), partners)
        session = RemoteSession(len(ids), carry, {vote_sums.client: role}, mask_partners=partners)
        yield session
        session.later_all(session.clients)
        session.flush(exchanges.END)


def _mean_metrics(replies: Sequence[Mapping[str, Any]]) -> Metrics:
    """Means over the clients that have a metric."""
    metrics: Metrics = {
        "failed_clients": sum(reply["failed"] for reply in replies),
        "clients": sum(reply["clients"] for reply in replies),
    }
    for name in ("train_loss", "fit_accuracy"):
        values = [reply[name] for reply in replies if reply[name] >= 0]
        if values:
            metrics[name] = float(np.mean(values))
    return metrics


@dataclass(frozen=True, eq=False)
class CoTrainingClient:
    """A client of one run; its functions are those of a `ClientSide`.

    Attributes:
        settings: of the method.
        key: typed, of the models before the first round.
        federation: as the client knows it.
        draw: source of noise.
    """

    settings: CoTraining
    key: jax.Array
    federation: Federation
    draw: rr.DrawUniform = rr.from_system

    def answer(self, step: str, state: Any, request: Any, cohort: Cohort) -> tuple[Any, Any]:
        """Return the client's new state and its reply.

        Raises:
            ProtocolError: a message that does not belong to the state.
        """
        if step == TURN:
            return self.turn(state, request, cohort)
        voting = self.settings.voting
        address, number = exchanges.terms_of(request, "address", "round")
        if not state["tally"] or state["round"] != number:
            raise ProtocolError(f"step {step!r} of round {number} without answers of that round")

        def party_of(seed: bytes) -> ReplayedParty:
            roles = server_sums.roles(
                VOTES,
                vote_sums.client,
                array(state["tally"]),
                is_resilient=voting.sums == "masked_resilient",
            )
            return ReplayedParty(address, seed, roles, may_be_sparse=voting.mask_partners > 0)

        kept, frames = exchanges.answered(step, state, request, party_of)
        forgotten = NO_SUMMAND if step == exchanges.END else {}
        return {**state, **forgotten, **kept}, {"frames": frames}

    def turn(self, state: Any, request: Any, cohort: Cohort) -> tuple[Any, Any]:
        """Lines 3 to 6 of Algorithm 1."""
        settings = self.settings
        check_clients(self.federation, settings.num_classes, settings.public)
        rows = settings.privacy.known_rows(len(settings.public))
        if request["rows"] != rows:  # fewer would be less noise than the settings say
            raise ProtocolError(f"noise for {request['rows']} labels, and not for {rows}")
        client = int(np.asarray(cohort.client_id)[0])
        turn = client_turn(
            settings,
            self.restored(state["model"], client),
            cohort,
            PublicTargets(settings.public, request["label"], request["weight"]),
            rows,
            jax.random.wrap_key_data(jnp.asarray(request["key"])),
            lambda client: self.draw,
        )
        sent = turn.sent.get(client, Sent(b"", False, None))
        reply = reply_form() | {
            "answers": sent.content,
            "speaks": client in turn.sent,
            "abstains": sent.abstains,
            "failed": bool(turn.metrics["failed_clients"]),
            **{n: float(turn.metrics.get(n, -1.0)) for n in ("train_loss", "fit_accuracy")},
            "clients": int(turn.metrics["clients"]),
        }
        tally = b"" if sent.summand is None else _tally_bytes(sent.summand.astype(np.int32))
        kept = {"model": _to_bytes(turn.learner, client), "tally": tally, "round": request["round"]}
        return NO_STATE | kept, reply

    def restored(self, content: bytes, client: int) -> State:
        """Return the learner's state of all clients with this client's row; other rows are not read."""
        first = self.settings.learner.init(self.key, self.federation)
        if not content:
            return first
        leaves, structure = jax.tree.flatten(first)
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            rows = [stored[str(number)] for number in range(len(leaves))]
        return jax.tree.unflatten(
            structure,
            [_with_row(leaf, row, client) for leaf, row in zip(leaves, rows, strict=True)],
        )


def _to_bytes(state: State, client: int) -> bytes:
    """The client's row of each leaf, as an .npz file."""
    rows = {
        str(number): np.asarray(_data(leaf)[client])
        for number, leaf in enumerate(jax.tree.leaves(state))
    }
    content = io.BytesIO()
    np.savez(content, **rows)  # type: ignore[arg-type]
    return content.getvalue()


def _with_row(leaf: Any, row: np.ndarray, client: int) -> Any:
    """A leaf [M, ...] with this row; rows of another shape than the leaf's replace all."""
    data = np.array(_data(leaf))
    if data.shape[1:] != row.shape:
        data = np.zeros((len(data), *row.shape), row.dtype)
    data[client] = row
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(data))
    return jnp.asarray(data) if isinstance(leaf, jax.Array) else data


def _data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _tally_bytes(tally: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, tally, allow_pickle=False)
    return content.getvalue()
