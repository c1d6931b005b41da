"""Dry-run rounds: count a round's operations and bytes without computing at the clients.

    clients = CountingClients()
    training = Training(model, execution=ClientExecution(map_clients=clients))
    # or make_algorithm(..., map_clients=clients)
    costs = round_costs(algorithm, clients, federation, key)

Everything but the clients' computation runs as in any round: the cohort, the server's messages and state,
and every `Communication` count. A client's outputs are replaced by ones. Messages of nonzero or changed
entries (FedMatch) are therefore counted whole. Values that depend on a client's labels alone are computed:
its number of steps, the bytes it sends beside its model, and its boolean outputs (which prototypes exist).
The skipped computation is recorded as a program, and XLA counts its operations
(`jaxfed.kernels.devices`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.rounds import play
from jaxfed.kernels.devices import operations
from jaxfed.training.round.client_round import ClientUpdate

_STEPS, _MODEL = "local_steps", "parameters"


class RoundCosts(NamedTuple):
    """Floating-point operations, local steps and bytes of one client in one round, on average."""

    operations: float
    steps: float
    upload_bytes: float
    download_bytes: float


class CountingClients:
    """A `map_clients` that records the clients' programs instead of running them."""

    def __init__(self) -> None:
        self._programs: dict[Any, tuple[Any, ...]] = {}

    def __call__(self, fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Lift one client's program: see `jaxfed.federation.execution`."""

        def mapped(shared: Any, clients: Any) -> Any:
            one_client = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), clients
            )
            # By its code: each trace of a round makes the function anew.
            code = getattr(fn, "__code__", fn)
            self._programs[code] = fn, jax.tree.map(_shape, shared), one_client
            number = len(jax.tree.leaves(clients)[0])
            ones = jax.tree.map(
                lambda leaf: jnp.ones((number, *leaf.shape), leaf.dtype),
                jax.eval_shape(fn, shared, one_client),
            )
            if not isinstance(ones, ClientUpdate):
                return ones
            # No other output of the clients is used, so XLA compiles nothing else.
            steps, sent, by_labels = jax.lax.map(
                lambda client: _by_labels(fn(shared, client)), clients
            )
            metrics, truths = {**ones.metrics, _STEPS: steps}, iter(by_labels)
            upload = jax.tree.map(
                lambda leaf: next(truths) if leaf.dtype == bool else leaf, ones.upload
            )
            return ones._replace(metrics=metrics, sent=sent, upload=upload)

        return mapped

    def operations(self, steps: float) -> float:
        """Operations that one client would have computed, in a local update of `steps` steps."""
        return sum(operations(*program, turns=steps) for program in self._programs.values())


def round_costs(
    algorithm: FederatedAlgorithm,
    clients: CountingClients,
    federation: Federation,
    key: jax.Array,
    *,
    rounds: int = 10,
) -> RoundCosts:
    """Return the operations, steps and bytes of a client per round, in which all of `federation` take part.

    Bytes are means over `rounds`, after a first one in which nobody has shared anything yet; a multiple of
    ten counts FedMatch's helpers, sent in every tenth round, in full. The algorithm's training has these
    `clients`, and its local update one loop, over steps.
    """
    state = algorithm.init(key, federation)
    sent, received, steps = [], [], 0.0
    everybody = federation.cohort(ragged=False)
    for played in play(algorithm, state, range(rounds + 1), cohort_of=lambda _: everybody, key=key):
        counted = played.metrics["communication"]
        sent.append(counted["upload_bytes"])
        received.append(counted["download_bytes"])
        steps = float(played.metrics[_STEPS])
    means = (float(np.mean(of_rounds[1:])) for of_rounds in (sent, received))
    return RoundCosts(
        clients.operations(steps), steps, *(mean / federation.num_clients for mean in means)
    )


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), leaf.dtype)


def _by_labels(update: ClientUpdate) -> tuple[jax.Array, dict[str, jax.Array], list[jax.Array]]:
    """The parts of an update that its data alone determine: steps, bytes, the upload's boolean leaves."""
    sent = dict(update.sent)
    # Only training would show how much of a model changed: without this entry it counts whole.
    sent.pop(_MODEL, None)
    truths = [leaf for leaf in jax.tree.leaves(update.upload) if leaf.dtype == bool]
    return update.metrics[_STEPS], sent, truths
