"""`federation.public_size` and `federation.public_dataset`: examples that everybody has, without labels.

    public_size = 1000                     so many of the training split, which no client holds then
    public_fraction = 0.5                  this share of it, where public_size is 0
    public_dataset = "cifar10"             the training split of another data set; with a public_size a part
    public_labeled = True                  with their labels, which everybody has, too
    own_size = 100                         so many of the training split are clients', all together

FedCT (A. Abourayya et al. "Little is Enough: Boosting Privacy by Sharing Only Hard Labels in Federated
Semi-Supervised Learning". AAAI 2025) has clients agree on labels of U, public examples of the clients' own
distribution: in its experiments a part of the training split. How that part is drawn it does not say; here
at random, by the repeat's seed, of all classes together. FedMD (D. Li, J. Wang. "FedMD: Heterogenous
Federated Learning via Model Distillation". 2019) has another data set for it, with its labels.

Without an `own_size` clients hold whatever is not public: the larger U, the less they have. With one, clients
have the same examples whatever the public_size is, a smaller U is a part of a larger one, and what is left
over is nobody's (FedCT, Appendix C.5: how large U is, with the local data fixed).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.data import Dataset
from jaxfed.errors import UsageError

_PUBLIC = 0x7075626C  # sets the draw of public examples apart from what deals the rest
_OWN = 0x6F776E  # and that of clients' own ones apart from both


class Public(NamedTuple):
    """Indices int64 [n_u], ascending, into the training split, or behind both splits into the public set.

    `labels` int32 [n_u], of `num_classes` classes, where everybody has them; None and 0 elsewhere.
    """

    points: np.ndarray
    labels: np.ndarray | None
    num_classes: int


def drawn_own(wanted: ConfigDict, train: np.ndarray, seed: int) -> np.ndarray:
    """int64, ascending: examples of `train` that are clients' in the repeat with this seed, and never public.

    None where `own_size` is 0: clients hold what is not public. Drawn before public examples and without a
    look at how many these are.

    Raises:
        UsageError: more than there are.
    """
    size = wanted.own_size
    if size > len(train):
        raise UsageError(
            f"config.federation.own_size={size}: at most {len(train)}, all that there is to train on"
        )
    return np.sort(np.random.default_rng((seed, _OWN)).permutation(train)[:size])


def drawn_public(
    wanted: ConfigDict, data: Dataset, other: Dataset | None, train: np.ndarray, seed: int
) -> Public:
    """The public examples of the repeat with this seed.

    Args:
        wanted: the section `federation`.
        data: the clients' data set.
        other: the public one, if there is one.
        train: int64, the examples of `data` to draw from, those of `drawn_own` left out.
        seed: of the repeat.

    Raises:
        UsageError: more than there are, or all that clients could hold.
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
        raise UsageError(
            f"config.federation.public_size={size}: at most {most} of what {source.name} has to train "
            f"on{labels}{why}"
        )
    rng = np.random.default_rng((seed, _PUBLIC))
    rows = np.sort(rng.permutation(candidates)[:size])
    if not wanted.public_labeled:
        return Public(first + rows, None, 0)
    return Public(first + rows, source.y[rows].astype(np.int32), source.num_classes)


def classes_to_measure_by(data: Dataset, other: Dataset | None) -> np.ndarray:
    """int32 [n], of the public set's examples: their classes where these are the clients' own, else -1."""
    if other is None:
        return data.y[:0]
    if other.class_names == data.class_names:
        return other.y
    return np.full_like(other.y, -1)


def check_public(config: ConfigDict) -> None:
    """Labels are of public examples that there are, and methods that teach some have them.

    Raises:
        UsageError: there are none.
    """
    wanted = config.federation
    if wanted.public_size or wanted.public_fraction or wanted.public_dataset:
        return
    for name in methods.chosen(config):
        if methods.is_public(config, name):
            raise UsageError(
                f"config.federation.public_size=0: {name!r} teaches clients labels of public examples; "
                "allowed are 1 or more, a public_fraction above 0, or a public_dataset"
            )
    if wanted.public_labeled:
        raise UsageError(
            "config.federation.public_labeled=True: allowed with a public_size, a public_fraction or a "
            "public_dataset, without which there are no public examples"
        )
