"""The server's mean under masks: it learns the sum of a round's updates, and no client's own.

    client k    z_k = (p_k delta_k, p_k, ...)       float64, fixed point in Z_{2^64} (`Summand`)
    sum         z = sum_k z_k                       masked, over the clients that stay (`server_sums`)
    server      sum_k p_k delta_k / sum_k p_k       the round's one update, of weight sum_k p_k

Double masks after Bonawitz et al. (CCS 2017), among all clients of a round, or each with k = O(log K) others
(Bell et al., CCS 2020; `jaxfed.secure.session.neighborhoods`). In the sum is who has sent its upload, even if
it leaves after that. With fewer than two clients nothing is sent, and the model stays as it is.

z differs from the exact sum by at most K 2^-41 in each number. Numbers stay below 2^23 / K: one beyond it, or
NaN, is an error, and never a sum that wraps. The mean differs from that in the clear by this error over
sum_k p_k, and by float32's rounding.

Everything that the server gets of a client is in the sum: weight, `ClientUpdate.correction` (SCAFFOLD's), the
metrics. A method works with it if its server's step is a function of weighted means.
Masks hide nothing from who controls all but one of a round's clients, nor what the sum itself tells; the
server can neither limit a client's norm nor check its numbers. Noise of DP-FedAvg is not part of it: its
server clips each update.

Cost of a client: 8 bytes a number in place of 4; 2 k + 1 streams of that length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import jitted
from jaxfed.secure.session.channel import Departure
from jaxfed.training.aggregate import check_weights
from jaxfed.training.consensus import Attendance, departures_of, fewest_clients
from jaxfed.training.round.client_round import ClientUpdate
from jaxfed.training.round.parts import Parts, UploadStore

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session
    from jaxfed.training.server_state import ServerState


class Summand(NamedTuple):
    """A client's terms of the sums, float64, or the sums of all.

    Fields:
        weighted: p_k delta_k.
        weight: p_k.
        correction: `ClientUpdate.correction`.
        used: p_k if the client trains, else 0: the weight of its metrics.
        metrics: used times the client's metrics.
        trains: 1 if it trains.
        unlabeled: number of examples that it labels.
        labels: that number times its labeling's metrics.
    """

    weighted: Any
    weight: Any
    correction: Any = ()
    used: Any = 0.0
    metrics: Any = ()
    trains: Any = 0.0
    unlabeled: Any = 0.0
    labels: Any = ()


def check_masked(parts: Parts) -> None:
    """Check that a method's server needs no client's own update.

    Raises:
        UsageError: it does.
    """
    why = ""
    if not parts.aggregate.is_mean:
        why = "the server's step of this method needs each client's update"
    elif parts.messages.after_mean or any(isinstance(hook, UploadStore) for hook in parts.hooks):
        why = "the server of this method stores each client's upload"
    elif not parts.messages.shares_model:
        why = "clients of this method send no model"
    if why:
        sums = parts.training.server.sums
        allowed = "use 'plaintext'"
        raise UsageError(why, key="sums", owner="ServerTraining", value=sums, allowed=allowed)


def summand_of(
    update: ClientUpdate, trains: Any, labels: Mapping[str, Any], unlabeled: Any
) -> Summand:
    """Return the terms of one client.

    Args:
        update: its update.
        trains: bool, False if it has nothing to train on.
        labels: metrics of its labeling.
        unlabeled: number of examples that these are means over.

    Raises:
        UsageError: an upload, or weights of several means.
    """
    if jax.tree.leaves(update.upload) or np.ndim(update.weight):
        why = "the server of this method stores each client's upload, or takes several means"
        raise UsageError(why, key="sums", owner="ServerTraining", allowed="use 'plaintext'")
    check_weights(update.weight, update.delta)
    weight, number = _float64(update.weight), _float64(unlabeled)
    used = weight * bool(trains)
    return Summand(
        _times(weight, update.delta),
        weight,
        jax.tree.map(_float64, update.correction),
        used,
        _times(used, update.metrics),
        _float64(trains),
        number,
        _times(number, dict(labels)),
    )


def vector_of(summand: Summand) -> np.ndarray:
    """Return all numbers of a summand, float64 [D, 1]."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(summand)])[:, None]


def summand_from(vector: np.ndarray, form: Summand) -> Summand:
    """Return the summand of a vector; `form` has its leaves' shapes."""
    leaves, structure = jax.tree.flatten(form)
    ends = np.cumsum([int(np.prod(np.shape(leaf))) for leaf in leaves])
    parts = np.split(vector.reshape(-1), ends[:-1])
    shaped = [part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def mean_of(total: Summand) -> tuple[ClientUpdate, jax.Array, dict[str, Any]]:
    """Return the clients' mean as the update of a single one, [1, ...], whether it trains, and metrics.

    The metrics are those that one update cannot show: the number of clients that train, of the labeling.
    """
    update = ClientUpdate(
        delta=_one(_over(total.weight, total.weighted)),
        weight=_one(total.weight),
        metrics=_one(_over(total.used, total.metrics)),
        correction=_one(total.correction),
    )
    labels = {
        name: jnp.float32(each) for name, each in _over(total.unlabeled, total.labels).items()
    }
    number = jnp.int32(np.rint(total.trains))
    return update, jnp.asarray([total.trains > 0]), {"clients": number, **labels}


def sum_in(session: Session, vectors: Mapping[int, Any], size: int) -> np.ndarray | None:
    """Return the sum of vectors [size, 1] by address, at the server; None if no sum is left."""
    from jaxfed.secure.row_sums.server_sums import server_sums

    return server_sums(session, vectors, is_resilient=True, shape=(size, 1))


def counted_in_sum(parts: Parts, state: ServerState) -> dict[str, np.ndarray]:
    """Return `ClientUpdate.sent`, [1]: no bytes of these kinds, which the messages of the sum contain."""
    has = {
        "parameters": True,
        "statistics": jax.tree.leaves(nnx.split_state(state.model, nnx.Param, ...)[1]),
        "control": parts.control.is_sent and jax.tree.leaves(state.control),
    }
    return {kind: np.zeros(1, np.int32) for kind, is_present in has.items() if is_present}


def masked(
    parts: Parts, trained: Callable[..., Any], clients_of: Callable[..., Any], stage: int
) -> Callable[..., Any]:
    """Return the training of a round, as `jaxfed.training.round.round.trained`, under masks.

    Args:
        parts: the method.
        trained: see there.
        clients_of: (cohort, labels) -> the clients of the stage.
        stage: 1 or 2.

    Raises:
        UsageError: the method's server needs each client's update; departures that are none.
    """
    check_masked(parts)
    parts.training.local.require_averaged_statistics("under masks")
    wanted = parts.training.server
    departures = departures_of(wanted.presence, wanted.sums, "presence", "ServerTraining")

    def step(name: str) -> Callable[..., Any]:
        return jitted(
            lambda cohort, labels, *others: getattr(clients_of(cohort, labels), name)(*others)
        )

    programs = {name: step(name) for name in ("updates", "stored")}
    compiled = cache(lambda function, *fixed: jitted(partial(function, *fixed)))

    def played(
        state: ServerState,
        cohort: Any,
        labels: Any,
        received: Any,
        examples: Any,
        key: Any,
        rate: Any,
    ) -> Any:
        labels = labels._replace(metrics={})
        run = {name: partial(each, cohort, labels) for name, each in programs.items()}
        ids = np.asarray(cohort.client_id)
        clients = SimulatedSums(parts, run, compiled, ids, departures)
        result = trained(parts, stage, clients, state, received, examples, key, rate)
        return result._replace(communication=clients.communication)

    return played


class SummedClients:
    """The clients of a round whose server receives their sums, in a simulation or on a network.

    A subclass has `total`: the arguments of `updates` -> the sum over the clients that stay until their
    upload. These keep their `client_id`.
    """

    parts: Parts
    client_id: np.ndarray
    metrics: dict[str, Any]
    total: Callable[..., Summand]

    def updates(self, state: ServerState, *others: Any) -> tuple[ClientUpdate, jax.Array]:
        """Return the clients' mean as one update, [1, ...], and whether it trains, bool [1]."""
        update, trains, self.metrics = mean_of(self.total(state, *others))
        return update._replace(sent=counted_in_sum(self.parts, state)), trains


@dataclass(eq=False)
class SimulatedSums(SummedClients):
    """The clients of a simulated round, with the methods of `CohortClients`.

    Attributes:
        parts: the method.
        programs: compiled methods of `CohortClients`.
        at_server: compiles a function of the server's with these first arguments.
        client_id: int32 [K]; -1 for a row without a client, and for one that is not in the sum.
        departures: who leaves each sum.
        metrics: of the clients.
        communication: messages of the sums.
    """

    parts: Parts
    programs: Mapping[str, Callable[..., Any]]
    at_server: Callable[..., Any]
    client_id: np.ndarray
    departures: Sequence[Departure]
    metrics: dict[str, Any] = field(default_factory=dict)
    communication: Communication = field(default_factory=Communication)

    def total(self, state: ServerState, *others: Any) -> Summand:
        """Return the sum over the rows of clients that stay until their upload."""
        from jaxfed.secure.session.neighborhoods import enough_partners
        from jaxfed.secure.session.parties import Session

        self._updates, trains = self.programs["updates"](state, *others)
        shown = self._updates._replace(client_state=(), optimizer_state=(), sent=())
        stacked = jax.tree.map(np.asarray, (shown, trains))
        rows, sums = np.flatnonzero(self.client_id >= 0), self.parts.training.server.sums

        def summand(row: int) -> Summand:
            update, is_training = jax.tree.map(lambda leaf: leaf[row], stacked)
            return summand_of(update, is_training, {}, 0)

        summands = [summand(row) for row in rows.tolist() or [0]]
        vectors, total, summed = [vector_of(each) for each in summands], None, list[int]()
        if len(rows) >= fewest_clients(sums):
            presence = Attendance(self.client_id[rows], self.departures).presence()
            partners = enough_partners(len(rows), 1)
            session = Session(len(rows), mask_partners=partners, presence=presence)
            total = sum_in(session, dict(enumerate(vectors)), len(vectors[0]))
            summed = list(session.contributors)
            self.communication.add(session.communication())
        is_summed = np.isin(np.arange(len(self.client_id)), rows[summed])
        self.client_id = np.where(is_summed, self.client_id, -1).astype(np.int32)
        return summand_from(np.zeros_like(vectors[0]) if total is None else total, summands[0])

    def stored(self, state: ServerState, updates: ClientUpdate) -> ServerState:
        """Return the state with the clients' new states, of those too that have left the sum."""
        del updates
        after: ServerState = self.programs["stored"](state, self._updates)
        return after


def _float64(leaf: Any) -> np.ndarray:
    return np.asarray(leaf, np.float64)


def _times(factor: Any, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: factor * _float64(leaf), tree)


def _over(number: Any, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf / (number or 1), tree)


def _one(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[None], jnp.float32), tree)
