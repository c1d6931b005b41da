"""Preprocessing of a data set's examples before they are dealt to clients: `preprocessing.kind`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from jaxfed.config.methods import chosen, heeds_scales
from jaxfed.data import Dataset, Partition
from jaxfed.data.dataset import standardization
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation

_LARGEST_RATIO = 100  # of feature scales without a warning

Report = Callable[[int, int], None]  # examples or rounds done, and in all


def to_nobody(done: int, total: int) -> None:
    """Ignore progress reports."""


class Parts(NamedTuple):
    """Examples [n, ...] that are preprocessed in the same way; a federation numbers them in this order.

    Attributes:
        train: the training split.
        test: the test split of a set that has one of its own.
        public: examples of another, public data set.
        is_seen: bool [n] or a slice, training examples outside a drawn test split; used for statistics.
    """

    train: np.ndarray
    test: np.ndarray
    public: np.ndarray
    is_seen: np.ndarray | slice = slice(None)


def _identity(parts: Parts, config: ConfigDict, report: Report) -> np.ndarray:
    """Return the examples unchanged, flattened to float32 [n, d]."""
    examples = _images(parts, config, report)
    return examples.reshape(len(examples), math.prod(examples.shape[1:])).astype(np.float32)


def _images(parts: Parts, config: ConfigDict, report: Report) -> np.ndarray:
    """Return the examples as stored, bytes as bytes; models normalize them."""
    del config, report
    others = [part for part in (parts.test, parts.public) if len(part)]
    return np.concatenate([parts.train, *others]) if others else parts.train


def _standardized(parts: Parts, config: ConfigDict, report: Report) -> np.ndarray:
    """Scale every feature to mean 0 and variance 1 over the training examples.

    These include the clients', the server's, validation examples, and public ones of the same set. They
    exclude test examples drawn from the training split.
    """
    transform = standardization(parts.train[parts.is_seen])
    return _identity(Parts(*map(transform, parts[:3])), config, report)


def _pretrained(parts: Parts, config: ConfigDict, report: Report) -> np.ndarray:
    """Compute features of a network trained on ImageNet; each part has its own files in the cache."""
    there = [parts.train, *(part for part in (parts.test, parts.public) if len(part))]
    total = sum(map(len, there))

    def features(place: int) -> np.ndarray:
        before = sum(map(len, there[:place]))
        return pretrained_part(there[place], config, lambda done: report(before + done, total))

    made = [features(place) for place in range(len(there))]
    return np.concatenate(made) if len(made) > 1 else made[0]


def warn_of_scales(dataset: Dataset, config: ConfigDict) -> None:
    """Log a warning if unscaled features differ so much that a few dominate cosines and distances.

    A feature's scale is its largest absolute value; features that are 0 everywhere have none. Only vectors
    are checked, because all entries of an image have the same unit.
    """
    if config.preprocessing.kind != "identity" or dataset.x.ndim != 2:
        return
    methods = [name for name in chosen(config) if heeds_scales(config, name)]
    if not methods:
        return
    scales = np.abs(dataset.x).max(axis=0)
    scales[scales == 0] = np.nan
    if np.isnan(scales).all() or np.nanmax(scales) <= _LARGEST_RATIO * np.nanmin(scales):
        return
    large, small = np.nanargmax(scales), np.nanargmin(scales)
    logging.warning(
        "%s: feature %d goes up to %.3g, feature %d to %.3g; the large ones decide cosines and distances, as "
        "%s may take: config.preprocessing.kind='standardized' gives all the same weight",
        dataset.name,
        large,
        scales[large],
        small,
        scales[small],
        ", ".join(map(repr, methods)),
    )


def check_pretrained(dataset: Dataset, config: ConfigDict) -> None:
    """Check that network, weights and sizes can be used, and that examples are images of a known range."""
    if dataset.x.dtype != np.uint8 and not 0 <= dataset.x.min() <= dataset.x.max() <= 1:
        raise UsageError(
            f"config.preprocessing.kind='pretrained': needs images, uint8 or from 0 to 1; "
            f"{dataset.name} has {dataset.x.dtype} from {dataset.x.min():g} to {dataset.x.max():g}"
        )
    pretrained_part(dataset.x[:0], config, lambda done: None)


def with_learned_features(
    federation: Federation, config: ConfigDict, seed: int, report: Report, folder: Path | None
) -> Federation:
    """Return the clients with features of a model that they train first; it is saved under `folder`."""
    # Imported here, as in `pretrained_part`.
    from jaxfed.config.data import federated_features
    from jaxfed.host.checkpoint import Checkpoints

    checkpoints = Checkpoints(folder) if folder else None
    return federated_features.with_learned_features(
        config, federation, seed - config.seed, checkpoints, report
    )


def check_learned(dataset: Dataset, config: ConfigDict) -> None:
    """Check that the model can be built for examples of this shape, and its method for such clients."""
    from jaxfed.config.data.federated_features import check

    nobody = (np.zeros(0, np.int64),)
    partition = Partition(nobody, nobody, nobody)
    check(config, Federation(dataset.x[:0], dataset.y[:0], partition, dataset.num_classes))


def pretrained_part(
    images: np.ndarray, config: ConfigDict, report: Callable[[int], None]
) -> np.ndarray:
    """Compute features of a network trained on ImageNet for one split."""
    # Imported here, because Flax takes half a second to import and only this needs it.
    from jaxfed.data.features import pretrained_features

    wanted = config.preprocessing
    return pretrained_features(
        images,
        network=wanted.network,
        weights=wanted.weights or None,
        root=config.dataset.root or None,
        image_size=wanted.image_size or None,
        batch_size=wanted.batch_size or None,
        progress=report,
    )


PREPROCESSING: dict[str, Callable[[Parts, ConfigDict, Report], np.ndarray]] = {
    "identity": _identity,
    "images": _images,
    "standardized": _standardized,
    "pretrained": _pretrained,
    "federated_features": _images,  # inputs of the model; see `jaxfed.config.data.federated_features`
}
