"""What becomes of a data set's examples before clients hold them: `preprocessing.kind`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from jaxfed.data import Dataset, Partition
from jaxfed.data.dataset import standardized
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation

_LARGEST_RATIO = 100  # of features' scales

Report = Callable[[int, int], None]  # examples or rounds done, and in all


def to_nobody(done: int, total: int) -> None:
    """Report to nobody."""


def _identity(dataset: Dataset, config: ConfigDict, report: Report) -> np.ndarray:
    """The examples as they are, flattened to float32 [n, d]."""
    del config, report
    examples = np.concatenate([dataset.x, dataset.x_test])
    return examples.reshape(len(examples), math.prod(examples.shape[1:])).astype(np.float32)


def _images(dataset: Dataset, config: ConfigDict, report: Report) -> np.ndarray:
    """The examples as they are stored, bytes as bytes; models normalize them."""
    del config, report
    return np.concatenate([dataset.x, dataset.x_test]) if len(dataset.x_test) else dataset.x


def _standardized(dataset: Dataset, config: ConfigDict, report: Report) -> np.ndarray:
    """Every feature with mean 0 and variance 1 over the training examples."""
    return _identity(standardized(dataset), config, report)


def _pretrained(dataset: Dataset, config: ConfigDict, report: Report) -> np.ndarray:
    """Features of a network trained on ImageNet; each split has its own files in the cache."""
    num_train, total = len(dataset.x), len(dataset.x) + len(dataset.x_test)
    train = pretrained_part(dataset.x, config, lambda done: report(done, total))
    if total == num_train:
        return train
    test = pretrained_part(dataset.x_test, config, lambda done: report(num_train + done, total))
    return np.concatenate([train, test])


def warn_of_scales(dataset: Dataset, config: ConfigDict) -> None:
    """One line where features are left as they are and a few of them decide every cosine and distance.

    A feature's scale is its largest absolute value; those that are 0 everywhere have none. Of vectors only:
    the entries of an image have one unit.
    """
    if config.preprocessing.kind != "identity" or dataset.x.ndim != 2:
        return
    scales = np.abs(dataset.x).max(axis=0)
    scales[scales == 0] = np.nan
    if np.isnan(scales).all() or np.nanmax(scales) <= _LARGEST_RATIO * np.nanmin(scales):
        return
    large, small = np.nanargmax(scales), np.nanargmin(scales)
    logging.warning(
        "%s: feature %d goes up to %.3g, feature %d to %.3g; the large ones decide every cosine and "
        "distance: config.preprocessing.kind='standardized' gives all the same weight",
        dataset.name,
        large,
        scales[large],
        small,
        scales[small],
    )


def check_pretrained(dataset: Dataset, config: ConfigDict) -> None:
    """Network, weights and sizes can be used, and the examples are images with a known range."""
    if dataset.x.dtype != np.uint8 and not 0 <= dataset.x.min() <= dataset.x.max() <= 1:
        raise UsageError(
            f"config.preprocessing.kind='pretrained': needs images, uint8 or from 0 to 1; "
            f"{dataset.name} has {dataset.x.dtype} from {dataset.x.min():g} to {dataset.x.max():g}"
        )
    pretrained_part(dataset.x[:0], config, lambda done: None)


def with_learned_features(
    federation: Federation, config: ConfigDict, seed: int, report: Report, folder: Path | None
) -> Federation:
    """The clients with features of a model that they train first, saved under `folder`."""
    # Here, as in `pretrained_part`.
    from jaxfed.config import federated_features
    from jaxfed.host.checkpoint import Checkpoints

    checkpoints = Checkpoints(folder) if folder else None
    return federated_features.with_learned_features(
        config, federation, seed - config.seed, checkpoints, report
    )


def check_learned(dataset: Dataset, config: ConfigDict) -> None:
    """The model can be made for examples of this shape, and its method for such clients."""
    from jaxfed.config.federated_features import check

    nobody = (np.zeros(0, np.int64),)
    partition = Partition(nobody, nobody, nobody)
    check(config, Federation(dataset.x[:0], dataset.y[:0], partition, dataset.num_classes))


def pretrained_part(
    images: np.ndarray, config: ConfigDict, report: Callable[[int], None]
) -> np.ndarray:
    """Features of a network trained on ImageNet for one split."""
    # Here, because Flax takes half a second to import and only this needs it.
    from jaxfed.data.features import pretrained_features

    wanted = config.preprocessing
    return pretrained_features(
        images,
        network=wanted.network,
        weights=wanted.weights or None,
        root=config.dataset.root or None,
        image_size=wanted.image_size or None,
        batch_size=wanted.batch_size or None,
        progress=lambda progress: report(progress.done),
    )


PREPROCESSING: dict[str, Callable[[Dataset, ConfigDict, Report], np.ndarray]] = {
    "identity": _identity,
    "images": _images,
    "standardized": _standardized,
    "pretrained": _pretrained,
    "federated_features": _images,  # what the model takes; see `jaxfed.config.federated_features`
}
