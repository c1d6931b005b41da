"""Empirical sensitivity of a client's labels of public examples to one of its examples: not a bound.

FedCT (arXiv 2310.05696, Section 5) uses as sensitivity of a client's labels the largest change among 100
neighbors of its data. Here client i with h_i = A(D_i u P, h) draws n of its examples and replaces each, one
at a time, by a public example with a label drawn uniformly; from the same model h, by the same key,

    r_i = max over n neighbors D' of #{u in U : A(D' u P, h)(u) != h_i(u)},        r = max_i r_i

It is no bound (`jaxfed.privacy.label_sensitivity`): the next neighbor may change more, and h stays the same
although it has seen the example in earlier rounds. Nor is r itself private. A client with one example has
r_i = |U|, and so has a client whose learner fails on a neighbor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import numpy as np

from jaxfed.federation.cohort import Cohort
from jaxfed.privacy.label_sensitivity import estimate

# A cohort of one client -> its labels int32 [U]; -1 for an abstention.
LabelsOf = Callable[[Cohort], np.ndarray]


def estimated_rows(
    labels_of: LabelsOf,
    cohort: Cohort,
    client_id: np.ndarray,
    public: np.ndarray,
    num_classes: int,
    key: jax.Array,
    *,
    num_neighbors: int,
) -> int:
    """Return r over these clients of a cohort, 1 or more; 0 if none of them has an example of its own.

    Args:
        labels_of: trains a client as the round does.
        cohort: the round's.
        client_id: int32, the clients that send labels; -1 for none.
        public: U, [U, ...], of clients' dtype.
        num_classes: C.
        key: typed; each client's neighbors are drawn from it by the client's number.
        num_neighbors: n.

    Cost: n + 1 trainings of each client, one after another. Estimators store their training data, here n
    copies of each client's examples.
    """
    most = 0
    for client in sorted(int(one) for one in client_id if one >= 0):
        (place,) = np.flatnonzero(np.asarray(cohort.client_id) == client)
        x, y, mask = (np.asarray(field[place]) for field in cohort[1:])
        own = np.flatnonzero(y >= 0)
        if len(own) == 1:
            most = len(public)
        if len(own) < 2:
            continue
        client_key = jax.random.fold_in(key, client)
        seed = int(jax.random.randint(client_key, (), 0, np.iinfo(np.int32).max))
        rng = np.random.default_rng(seed)
        spare = (
            np.asarray(public)[rng.integers(len(public), size=num_neighbors)],
            rng.integers(num_classes, size=num_neighbors).astype(y.dtype),
        )
        found = estimate(
            partial(_labels_with, labels_of, client, x, y, mask),
            *(x[own], y[own]),
            num_neighbors=num_neighbors,
            seed=seed,
            spare=spare,
        )
        most = max(most, found.rows, 1)
    return most


def _labels_with(
    labels_of: LabelsOf,
    client: int,
    x: np.ndarray,
    y: np.ndarray,
    mask: np.ndarray,
    new_x: np.ndarray,
    new_y: np.ndarray,
) -> np.ndarray:
    """Return a client's labels of U after its labeled rows are replaced by other examples."""
    own, x, y = y >= 0, x.copy(), y.copy()
    x[own], y[own] = new_x, new_y
    return labels_of(Cohort(np.asarray([client], np.int32), x[None], y[None], mask[None]))
