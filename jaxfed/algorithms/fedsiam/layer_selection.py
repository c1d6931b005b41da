"""Selection of the online network's layers to send, by divergence from the target (FedSiam, Section 3.3).

    FSM_j = |theta_t[j] - theta_s[j]| / |theta_s[j]|

Clients send layers of the online network with FSM_j >= the tau-quantile of all values that clients measured
in the last phi rounds. For the other layers the server uses the target's. tau is the share of layers that is
not sent. A client that took part more than once in phi rounds counts with its last measurement.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.tree_util import DictKey

from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.training.server.client_rows import gather, took_part
from jaxfed.training.server.server_state import ServerState, together

if TYPE_CHECKING:
    from jaxfed.training.round.server_hooks import Send

_NEVER = -1
_ABOVE_ALL = float(np.finfo(np.float32).max)  # messages must be finite


class Measured(NamedTuple):
    """A client's last layer divergences, float32 [J], and their round, int32; -1 = none yet."""

    divergence: jax.Array
    round: jax.Array


class Asked(NamedTuple):
    """The server's message: the least divergence of a layer to be sent, and the round's number."""

    threshold: jax.Array
    round: jax.Array


def unmeasured(network: nnx.State) -> Measured:
    """Return the record of a client that has not measured the network's layers yet."""
    return Measured(jnp.zeros(len(layers(network))), jnp.int32(_NEVER))


def layers(parameters: nnx.State) -> list[list[int]]:
    """Positions of the leaves of each layer; paths of one layer's leaves differ in their last part only."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(parameters)]
    parents = [[key for key in path if isinstance(key, DictKey)][:-1] for path in paths]
    return [
        [position for position, _ in group]
        for _, group in groupby(enumerate(parents), key=lambda item: item[1])
    ]


def layer_divergence(state: nnx.State) -> jax.Array:
    """FSM, float32 [J], of a state {online, target}."""
    online, target = (
        jax.tree.leaves(nnx.filter_state(state[name], nnx.Param)) for name in ("online", "target")
    )

    def norm(leaves: list[jax.Array]) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves))

    return jnp.stack(
        [
            norm([target[i] - online[i] for i in layer])
            / jnp.maximum(norm([online[i] for i in layer]), 1e-12)
            for layer in layers(nnx.filter_state(state["online"], nnx.Param))
        ]
    )


def selected(state: nnx.State, is_sent: jax.Array) -> tuple[nnx.State, jax.Array]:
    """Return the networks as the server receives them, and the bytes sent, int32.

    Online layers that are not sent are replaced by the target's.
    """
    online, statistics = nnx.split_state(state["online"], nnx.Param, ...)
    leaves, structure = jax.tree.flatten(online)
    target = jax.tree.leaves(nnx.filter_state(state["target"], nnx.Param))
    sent = jnp.int32(num_bytes_of(target))
    for number, layer in enumerate(layers(online)):
        num_bytes = num_bytes_of([leaves[i] for i in layer])
        sent += jnp.where(is_sent[number], num_bytes, 0).astype(jnp.int32)
        for i in layer:
            leaves[i] = jnp.where(is_sent[number], leaves[i], target[i])
    online = nnx.merge_state(jax.tree.unflatten(structure, leaves), statistics)
    return together(online=online, target=state["target"]), sent


def threshold_sender(quantile: float, period: int) -> Send:
    """Return the hook that sends the threshold: a quantile of divergences measured in the last rounds."""

    def send(state: ServerState, cohort: Cohort, communication: Communication) -> Asked:
        measured, done, num_rows = state.clients, int(state.round), len(cohort.client_id)
        ids = took_part(measured)
        divergences, rounds = (np.asarray(gather(rows, ids)) for rows in measured)
        recent = divergences[(rounds >= 0) & (rounds >= done - period)]
        threshold = quantile_of(recent, quantile)
        if quantile:
            communication.down("threshold", 4 * int(np.sum(np.asarray(cohort.client_id) >= 0)))
        return Asked(
            jnp.full(num_rows, threshold, jnp.float32), jnp.full(num_rows, done, jnp.int32)
        )

    return send


def quantile_of(values: np.ndarray, share: float) -> float:
    """Return the quantile; for share 0 or no values the lowest float32, for share 1 the highest."""
    if share <= 0 or not values.size:
        return -_ABOVE_ALL
    return _ABOVE_ALL if share >= 1 else float(np.quantile(values, share))
