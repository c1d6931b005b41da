"""Rounds in which clients do not compute: what a round costs, without its costs.

    clients = CountingClients()
    training = replace(training, map_clients=clients)    # or make_algorithm(..., map_clients=clients)
    costs = round_costs(algorithm, clients, federation, key)

Everything but the clients' own work is as in any round: who takes part, what the server sends and keeps,
and above all every `Communication` that is counted. In place of a client's outputs stand ones, so that what
is sent where it is not 0, or where it changed (FedMatch), is sent whole. What depends on a client's labels
alone is computed: how many steps it takes, how many bytes it sends beside its model, and what is true or
false of it (which prototypes there are). The work left out is kept as a program, and XLA says what it takes
(`jaxfed.kernels.operations`).
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
from jaxfed.kernels.operations import operations
from jaxfed.training.local_update import ClientUpdate

_STEPS, _MODEL = "local_steps", "parameters"


class RoundCosts(NamedTuple):
    """Of one client in one round, the mean over clients and rounds.

    Fields:
        operations: floating-point operations of all that it computes.
        steps: of its local update.
        upload_bytes: what it sends.
        download_bytes: what it receives.
    """

    operations: float
    steps: float
    upload_bytes: float
    download_bytes: float


class CountingClients:
    """A `map_clients` whose clients do nothing and are remembered."""

    def __init__(self) -> None:
        self._programs: dict[Callable[..., Any], tuple[Any, Any]] = {}

    def __call__(self, fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Lift one client's program: see `jaxfed.federation.client_map`."""

        def mapped(shared: Any, clients: Any) -> Any:
            own = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), clients
            )
            self._programs[fn] = jax.tree.map(_shape, shared), own
            number = len(jax.tree.leaves(clients)[0])
            ones = jax.tree.map(
                lambda leaf: jnp.ones((number, *leaf.shape), leaf.dtype),
                jax.eval_shape(fn, shared, own),
            )
            if not isinstance(ones, ClientUpdate):
                return ones
            # Nothing else of the clients' work is asked for, and so nothing else of it is compiled.
            known = jax.lax.map(lambda client: _by_labels(fn(shared, client)), clients)
            metrics = {**ones.metrics, _STEPS: known.steps}
            truths = iter(known.truths)
            upload = jax.tree.map(
                lambda leaf: next(truths) if leaf.dtype == bool else leaf, ones.upload
            )
            return ones._replace(metrics=metrics, sent=known.sent, upload=upload)

        return mapped

    def operations(self, steps: float) -> float:
        """Of all that one client would have computed, in a local update of so many steps."""
        return sum(operations(fn, *shapes, turns=steps) for fn, shapes in self._programs.items())


def round_costs(
    algorithm: FederatedAlgorithm,
    clients: CountingClients,
    federation: Federation,
    key: jax.Array,
    *,
    rounds: int = 10,
) -> RoundCosts:
    """What a client computes, sends and receives a round.

    Args:
        algorithm: of a training with these `clients`; its local update has one loop, of its steps.
        clients: see above.
        federation: all of whose clients take part.
        key: typed.
        rounds: over which bytes are averaged, after a first one, in which nobody has shown anything yet. Ten,
            or a multiple, has FedMatch's helpers, sent in every tenth, as often as they come.
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


class _ByLabels(NamedTuple):
    """What of an update its data alone decide; the boolean ones among the leaves of its upload."""

    steps: jax.Array
    sent: dict[str, jax.Array]
    truths: list[jax.Array]


def _by_labels(update: ClientUpdate) -> _ByLabels:
    sent = dict(update.sent)
    # How much of a model changed only training would show: without this entry it counts whole.
    sent.pop(_MODEL, None)
    truths = [leaf for leaf in jax.tree.leaves(update.upload) if leaf.dtype == bool]
    return _ByLabels(update.metrics[_STEPS], sent, truths)
