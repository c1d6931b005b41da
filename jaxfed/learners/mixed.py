"""Different learners at different clients: a list of learners, cycled over the clients (FedCT, Table 3).

With learners A_0, ..., A_{P-1} client j has A_{j mod P}. Each sees a federation of its own clients alone,
where client j is number j div P.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort, chosen
from jaxfed.learners.learner import Fitted, Learner, Predict, PublicTargets


def mixed(learners: Sequence[Learner]) -> Learner:
    """The learner whose client j has the model of `learners[j % P]`; its state is a tuple of theirs.

    Parts are fitted one after another, each in its own way: all its clients at once, or in processes. There
    are probabilities, and scores, if all parts have them. Metrics are means over the fitted clients of the
    parts that have them.

    Raises:
        UsageError: no learner; in `init`, fewer clients than learners.

    Cost: that of the parts. If cohorts vary, so does the number of clients of a part; a compiled part is
    compiled for each number.
    """
    if not learners:
        raise UsageError("mixed: no learner; use one or more")
    num_parts = len(learners)

    def init(key: jax.Array, federation: Federation) -> tuple[Any, ...]:
        if federation.num_clients < num_parts:
            raise UsageError(
                f"mixed: {num_parts} learners and {federation.num_clients} clients; use as many "
                "learners as clients at most"
            )
        return tuple(
            learner.init(jax.random.fold_in(key, part), _clients_of(federation, part, num_parts))
            for part, learner in enumerate(learners)
        )

    def fit(
        state: Any, cohort: Cohort, targets: PublicTargets | None, key: jax.Array, steps: int
    ) -> Fitted:
        failed: dict[int, str] = {}
        states, metrics = list(state), []
        for part, indices, ids in _by_part(cohort.client_id, num_parts):
            part_cohort = chosen(cohort, indices)._replace(client_id=ids)
            outcome = learners[part].fit(
                state[part], part_cohort, targets, jax.random.fold_in(key, part), steps
            )
            states[part] = outcome.state
            failed |= {number * num_parts + part: why for number, why in outcome.failed.items()}
            metrics.append(outcome.metrics)
        return Fitted(tuple(states), failed, _mean(metrics))

    def lifted(name: str) -> Predict:
        def ask(state: tuple[Any, ...], client_id: Array, x: Array) -> np.ndarray:
            parts = [
                (indices, getattr(learners[part], name)(state[part], ids, x))
                for part, indices, ids in _by_part(client_id, num_parts)
            ]
            if not parts:  # all rows are without a client
                return np.asarray(getattr(learners[0], name)(state[0], np.asarray(client_id), x))
            shape, dtype = (len(client_id), *parts[0][1].shape[1:]), parts[0][1].dtype
            answers = np.full(shape, -1 if name == "predict" else 0, dtype)
            for indices, answer in parts:
                answers[indices] = answer
            return answers

        return ask

    def where_all_have(name: str) -> Callable[..., Any] | None:
        return lifted(name) if all(getattr(each, name) for each in learners) else None

    return Learner(
        init,
        fit,
        lifted("predict"),
        where_all_have("predict_proba"),
        where_all_have("scores"),
        continues=any(each.continues for each in learners),
    )


def _clients_of(federation: Federation, part: int, num_parts: int) -> Federation:
    """The federation of every P-th client, from client `part` on."""
    splits = (split[part::num_parts] for split in federation.partition)
    return replace(federation, partition=type(federation.partition)(*splits))


def _by_part(client_id: Array, num_parts: int) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """(part, indices of its clients in the cohort, their numbers in the part), for parts with any client."""
    ids = np.asarray(client_id)
    parts = np.where(ids < 0, -1, ids % num_parts)
    present = [(part, np.flatnonzero(parts == part)) for part in np.unique(parts[parts >= 0])]
    return [(part, indices, ids[indices] // num_parts) for part, indices in present]


def _mean(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over clients, and their number."""
    names = dict.fromkeys(name for part in parts for name in part if name != "clients")
    mean: dict[str, Any] = {"clients": sum(part.get("clients", 0) for part in parts)}
    for name in names:
        having = [part for part in parts if name in part and part.get("clients")]
        counts = [part["clients"] for part in having]
        if having:
            mean[name] = float(np.average([part[name] for part in having], weights=counts))
    return mean
