"""FedRep: each client trains its head, then the body.

    w_k <- w;   E_v epochs of  v_k <- v_k - eta grad_v l(w_k, v_k; batch)
                E epochs of    w_k <- w_k - eta grad_w l(w_k, v_k; batch)

All else is FedPer's (`jaxfed.algorithms.fedper`): the heads' start, what leaves a client, how quality is
measured, and the differences from the paper.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxfed.algorithms.fedper import with_own_heads
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.models.head import Path, head_paths, split_head
from jaxfed.settings import Count
from jaxfed.training.local.local_training import Optimizer, Trained
from jaxfed.training.round.client_round import ClientRound
from jaxfed.training.specification import Training


@method(
    title="FedRep",
    cites="Collins, Hassani, Mokhtari, Shakkottai, ICML 2021",
    leaves="the change of its model's body",
    pseudo_label="none",
    weighting="uniform",
)
def fedrep(*, training: Training, head_epochs: Count = 10) -> FederatedAlgorithm:
    """FedRep on given labels.

    Args:
        training: the training specification, of a network with a head; its epochs are those of the body, E.
        head_epochs: E_v, epochs that train the head alone.

    Raises:
        UsageError: a network without a head.
    """
    paths = head_paths(training.model, "fedrep")
    head_alone, body_alone = (
        _moving(part, training.local.optimizer, paths) for part in ("head", "body")
    )
    training = training.with_local(optimizer=head_alone)

    def steps(client: ClientRound, start: nnx.State) -> Trained:
        head_key, body_key = jax.random.split(client.key)
        batches = replace(client.batches, epochs=head_epochs, steps=0)
        client = client._replace(key=head_key)
        first = client.steps(training.loss, start=start, batches=batches)
        if client.optimizer_state is not None:
            client = client._replace(optimizer_state=first.optimizer_state)
        client = client._replace(key=body_key)
        return client.steps(training.loss, start=first.state, optimizer=body_alone)

    return with_own_heads(training, "fedrep", steps)


def _moving(part: str, plain: Optimizer, paths: frozenset[Path]) -> Optimizer:
    """The optimizer applied to "head" or "body" alone; the other part and its state stay unchanged."""

    def split(parameters: Any) -> dict[str, Any]:
        return dict(zip(("head", "body"), split_head(parameters, paths), strict=True))

    def of_rate(rate: jax.Array) -> optax.GradientTransformation:
        optimizer = plain(rate)

        def init(parameters: Any) -> dict[str, Any]:
            return {name: optimizer.init(part) for name, part in split(parameters).items()}

        def update(gradient: Any, state: Any, parameters: Any) -> tuple[Any, Any]:
            parts = split(parameters)
            updates = jax.tree.map(jnp.zeros_like, parts)
            updates[part], moved = optimizer.update(split(gradient)[part], state[part], parts[part])
            return nnx.merge_state(*updates.values()), {**state, part: moved}

        return optax.GradientTransformation(init, update)

    return of_rate
