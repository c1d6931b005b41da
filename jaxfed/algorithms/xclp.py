"""XCLP: label propagation over one graph of all clients' points.

    H = Hamming distances of sign(Pi V),  W = normalized kNN graph of cos(pi H / L),
    Z = (I - alpha W)^-1 Y,  label_i = argmax_c Z_ic.

Protocols hide codes and label sums: the server then gets H and sums under masks (`xclp.hamming`,
`xclp.row_sums`). The method itself is `jaxfed.xclp`; this file gives it a cohort.

`late_fraction` is the share of each client's unlabeled points that are not in the graph: they come
after it is made, and are labeled by their nearest codes in it (`jaxfed.xclp.later_points`).
Their codes leave the client, too. That needs plaintext steps.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, OnNetwork
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution import HERE, Execution
from jaxfed.federation.method import method, with_attributes
from jaxfed.random_streams import Stream
from jaxfed.settings import Share
from jaxfed.xclp import (
    Parameters,
    Result,
    cross_client_label_propagation,
    drawn_seed,
    label_later,
    setup,
)
from jaxfed.xclp.one_shot.cosine_error import cosine_rmse
from jaxfed.xclp.one_shot.linear_heads import no_head, predicted_by_head
from jaxfed.xclp.one_shot.transduction import client_arrays, padded, transductive


@method(
    title="XCLP",
    cites="Scott, Yeo, Lampert, TMLR 2023, Section 4.1",
    leaves="the codes of its points, and its part of the label sums",
    on_network=True,
    one_shot=True,
    fields={"parameters": Parameters},
    without=("seed",),
    takes=("execution", "num_classes"),
)
def xclp(
    *, late_fraction: Share = 0.0, execution: Execution = HERE, parameters: Parameters
) -> FederatedAlgorithm:
    """XCLP as a one-round algorithm; keywords are the fields of `jaxfed.xclp.Parameters` but `seed`.

    The seed of Pi, where Pi has one, comes from the round's key. `execution` may provide worker
    processes, and receives progress. Beside the labels a round reports how well codes by the seed's Pi
    estimate cosines (`cosine_rmse`, and what theory expects): a diagnostic of the simulation, which sees
    all vectors. With `select` it reports what was chosen, and how many labels came back; codes are those of
    the number of bits that was chosen.

    Args:
        late_fraction: share of each client's unlabeled points, drawn by the round's key, that come after the
            graph is made.
        execution: worker processes, progress and memory.
        parameters: its fields but `seed` are keywords.

    Raises:
        UsageError: late points, where a step is a protocol.
    """
    return labeling_method(late_fraction, execution, parameters, owner="xclp")


def labeling_method(
    late_fraction: float, execution: Execution, parameters: Parameters, *, owner: str
) -> FederatedAlgorithm:
    """The method of a labeling with these settings; arguments and errors as `xclp`."""
    if late_fraction and parameters.has_session:
        raise UsageError(
            "late points need codes and scores, which no party of a protocol has together",
            key="late_fraction",
            owner=owner,
            value=late_fraction,
            allowed="use 0, or set hamming='plaintext' and row_sums='plaintext'",
        )

    def label_points(cohort: Cohort, key: jax.Array) -> tuple[Any, ...]:
        seed = drawn_seed(key)
        p = replace(parameters, seed=seed)
        vectors, labels = client_arrays(cohort)
        ids = np.asarray(cohort.client_id).tolist()
        late = [late_points(y, late_fraction, j, key) for j, y in zip(ids, labels, strict=True)]
        result = cross_client_label_propagation(
            *without_late(vectors, labels, late), p, execution, client_ids=ids
        )
        labeled = _labeled(result, vectors, late, p)
        num_bits = (result.choice.p if result.choice else p).num_bits
        measured, theory = cosine_rmse(vectors, setup(seed), num_bits)
        return (
            padded([label for label, _ in labeled], cohort, UNLABELED),
            padded([confidence for _, confidence in labeled], cohort, 0),
            {
                "steps": result.steps,
                "residual": result.residual,
                "cosine_rmse": measured,
                "cosine_rmse_theory": theory,
                "communication": result.communication.metrics(),
                **(result.choice.metrics() if result.choice else {}),
            },
            *([result.head] if result.head else []),
        )

    def on_network() -> OnNetwork:
        from jaxfed.xclp.network import on_network  # only networks need it

        return on_network(parameters, execution, late_fraction)

    if parameters.head == "none":
        plain = transductive(label_points)
        return plain._replace(round=with_attributes(plain.round, on_network=on_network))
    first_head = partial(no_head, num_classes=parameters.num_classes)
    return transductive(label_points, first_head)._replace(predict=predicted_by_head)


def late_points(labels: np.ndarray, fraction: float, client: int, key: jax.Array) -> np.ndarray:
    """bool [n_j]: which of a client's points come late; as many of the unlabeled as the fraction says.

    It depends on the round's key, the client's id and its labels, not on the others.
    """
    is_late = np.zeros(len(labels), bool)
    if not fraction:
        return is_late
    unlabeled = np.flatnonzero(labels < 0)
    seed = int(jax.random.bits(jax.random.fold_in(key, Stream.LATE_POINTS))), max(client, 0)
    chosen = np.random.default_rng(seed).permutation(unlabeled)
    is_late[chosen[: round(fraction * len(unlabeled))]] = True
    return is_late


def without_late(
    vectors: list[np.ndarray], labels: list[np.ndarray], late: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the points without the late ones; no copy if none is late."""
    if not any(is_late.any() for is_late in late):
        return vectors, labels
    return (
        [v[~is_late] for v, is_late in zip(vectors, late, strict=True)],
        [y[~is_late] for y, is_late in zip(labels, late, strict=True)],
    )


def _labeled(
    result: Result, vectors: list[np.ndarray], late: list[np.ndarray], p: Parameters
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Labels and confidences of all points of each client, by the graph that has those that are not late."""
    in_graph = [prediction[:2] for prediction in result.predictions]
    if not any(is_late.any() for is_late in late):
        return in_graph
    coming = [v[is_late] for v, is_late in zip(vectors, late, strict=True)]
    later = label_later(result, coming, p)
    joined = []
    for early_values, late_values, is_late in zip(in_graph, later, late, strict=True):
        joint = tuple(np.empty(len(is_late), values.dtype) for values in early_values)
        for values, early, rest in zip(joint, early_values, late_values, strict=False):
            values[~is_late], values[is_late] = early, rest
        joined.append((joint[0], joint[1]))
    return joined
