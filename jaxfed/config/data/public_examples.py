"""`federation.public_size` and `federation.public_dataset`: unlabeled examples shared by everybody.

    public_size = 1000                     number of training examples that are public and not dealt out
    public_fraction = 0.5                  the same as a share, if public_size is 0
    public_dataset = "cifar10"             the training split of another data set; a part with a public_size
    public_labeled = True                  public examples keep their labels, which everybody has
    own_size = 100                         number of training examples dealt to all clients together

FedCT (A. Abourayya et al. "Little is Enough: Boosting Privacy by Sharing Only Hard Labels in Federated
Semi-Supervised Learning". AAAI 2025) has clients agree on labels of U, public examples of the clients' own
distribution: in its experiments a part of the training split. The paper does not say how that part is drawn;
here it is drawn at random, by the repeat's seed, from all classes together. FedMD (D. Li, J. Wang. "FedMD:
Heterogenous Federated Learning via Model Distillation". 2019) uses another data set, with its labels.

Without `own_size`, clients hold everything that is not public: the larger U, the less they have. With
`own_size`, clients hold the same examples for every public_size, a smaller U is a subset of a larger one, and
the remaining examples are unused (FedCT, Appendix C.5: varying |U| with the local data fixed).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.sections import OTHER_PUBLIC, section_of
from jaxfed.data import Dataset
from jaxfed.errors import UsageError
from jaxfed.random_streams import Stream


class Public(NamedTuple):
    """Public examples of one repeat.

    `points` int64 [n_u], ascending, are indices into the training split; indices behind both splits refer to
    the public set. `labels` int32 [n_u] have `num_classes` classes; None and 0 if the labels are not public.
    """

    points: np.ndarray
    labels: np.ndarray | None
    num_classes: int


def drawn_own(wanted: ConfigDict, train: np.ndarray, seed: int) -> np.ndarray:
    """Draw the examples of `train` reserved for clients in the repeat with this seed: int64, ascending.

    Empty if `own_size` is 0; clients then hold everything that is not public. They are drawn before the
    public examples and do not depend on their number.

    Raises:
        UsageError: `own_size` exceeds the number of examples.
    """
    size = wanted.own_size
    if size > len(train):
        wrong = f"at most {len(train)}, all that there is to train on"
        raise UsageError(wrong, key="config.federation.own_size", value=size)
    return np.sort(np.random.default_rng((seed, Stream.OWN_EXAMPLES)).permutation(train)[:size])


def drawn_public(
    wanted: ConfigDict, data: Dataset, other: Dataset | None, train: np.ndarray, seed: int
) -> Public:
    """Draw the public examples of the repeat with this seed.

    Args:
        wanted: the section `federation`.
        data: the clients' data set.
        other: the public data set, if there is one.
        train: int64, the examples of `data` to draw from, without those of `drawn_own`.
        seed: of the repeat.

    Raises:
        UsageError: more examples are requested than exist, or none would be left for clients.
    """
    source, first, candidates = data, 0, train
    if other is not None:
        source, first, candidates = other, len(data.y) + len(data.y_test), np.arange(len(other.y))
    elif not (wanted.public_size or wanted.public_fraction):
        return Public(train[:0], None, 0)
    if wanted.public_labeled:
        candidates = candidates[source.is_labeled[candidates]]
    clients_have_theirs = other is not None or wanted.own_size
    most = len(candidates) if clients_have_theirs else min(len(candidates), len(train) - 1)
    size = wanted.public_size or most
    if other is None and not wanted.public_size:
        size = min(most, max(1, round(wanted.public_fraction * len(train))))
    if size > most:
        why = "" if other is not None else ", and one at least is clients'"
        if wanted.own_size and other is None:
            why = f" beside own_size={wanted.own_size}"
        labels = " with a label" if wanted.public_labeled else ""
        wrong = f"at most {most} of what {source.name} has to train on{labels}{why}"
        raise UsageError(wrong, key="config.federation.public_size", value=size)
    rng = np.random.default_rng((seed, Stream.PUBLIC_EXAMPLES))
    rows = np.sort(rng.permutation(candidates)[:size])
    if not wanted.public_labeled:
        return Public(first + rows, None, 0)
    return Public(first + rows, source.y[rows].astype(np.int32), source.num_classes)


def classes_to_measure_by(data: Dataset, other: Dataset | None) -> np.ndarray:
    """Return the classes of the public set's examples, int32 [n]; -1 if the two sets' classes differ."""
    if other is None:
        return data.y[:0]
    if other.class_names == data.class_names:
        return other.y
    return np.full_like(other.y, -1)


def check_public(config: ConfigDict) -> None:
    """Check that public examples exist if a method needs them.

    Raises:
        UsageError: there are no public examples.
    """
    if section_of(config, "federation").has_public:
        return
    for name in methods.chosen(config):
        if methods.is_public(config, name):
            raise UsageError(
                f"{name!r} has clients learn labels of public examples",
                key="config.federation.public_size",
                value=0,
                allowed=f"use 1 or more, or {OTHER_PUBLIC}",
            )
