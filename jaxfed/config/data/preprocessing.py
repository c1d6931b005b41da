"""Preprocessing of a data set's examples before they are dealt to clients: `preprocessing.kind`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.build.views import num_rows, with_views, without_views
from jaxfed.config.keys import refused
from jaxfed.data import Dataset
from jaxfed.data.dataset import Gaps
from jaxfed.data.encoding import flat
from jaxfed.data.features import check_images, pretrained_features
from jaxfed.data.mapped_rows import adjoined
from jaxfed.data.principal_components import Projection, principal_components
from jaxfed.data.standardization import Standardization, standardization
from jaxfed.errors import UsageError
from jaxfed.federation.execution.memory import require
from jaxfed.models.efficientnet import NUM_FEATURES

Report = Callable[[int, int], None]  # examples or rounds done, and in all


class Parts(NamedTuple):
    """Examples [n, ...] that are preprocessed in the same way; a federation numbers them in this order.

    Attributes:
        train: the training split.
        test: the test split of a set that has one of its own.
        public: examples of another, public data set.
        is_seen: bool [n] or a slice, training examples outside a drawn test split; used for statistics.
        validation: the data set's own validation examples; None without any.
        gaps: what filled the gaps of all parts; None if no value is missing.
    """

    train: np.ndarray
    test: np.ndarray
    public: np.ndarray
    is_seen: np.ndarray | slice = slice(None)
    validation: np.ndarray | None = None
    gaps: Gaps | None = None


def preprocessed(
    parts: Parts, config: ConfigDict, report: Report = lambda done, total: None
) -> np.ndarray:
    """Return all examples as the config's methods take them.

    `images` and `federated_features` are as stored, bytes as bytes; models normalize them. All others are
    float32 [n, d]. `standardized` scales every feature to mean 0 and variance 1 over the training examples:
    the clients', the server's, validation examples, and public ones of the same set, without test examples
    drawn from the training split. `pretrained` computes features of a network trained on ImageNet; each part
    has its own files in the cache; with `preprocessing.views` they are [n, rows, d].
    """
    check_copies(parts, config)
    others = parts.test, parts.public, parts.validation
    there = [parts.train, *(part for part in others if part is not None and len(part))]
    if config.preprocessing.kind == "pretrained":
        there = _with_features(there, parts, config, report)
    scale = scaling(parts, config)
    examples = scale(*there) if scale else adjoined(there)
    return flat(examples) if is_flat(config) else examples


def _with_features(
    there: list[np.ndarray], parts: Parts, config: ConfigDict, report: Report
) -> list[np.ndarray]:
    """Return the features of each part, and of the views of the first, the training split."""
    train, *others = there
    total, before = num_rows(config) * len(train) + sum(map(len, others)), 0
    settings = pretrained_settings(config)

    def features(images: np.ndarray) -> np.ndarray:
        nonlocal before
        done_before, before = before, before + len(images)
        return pretrained_features(
            images, progress=lambda done: report(done_before + done, total), **settings
        )

    own = features(train)
    project = projection(parts, config, own) or (lambda features: features)
    found = project(own)
    if config.preprocessing.views:
        found = with_views(found, train, config, lambda images: project(features(images)))
    return [found, *(without_views(project(features(part)), config) for part in others)]


def projection(
    parts: Parts, config: ConfigDict, own: np.ndarray | None = None
) -> Projection | None:
    """Return the projection of pretrained features onto principal components; None if they stay whole.

    `own` are the features of the training split, where they are computed already.
    """
    number = config.preprocessing.components
    if not number:
        return None
    if own is None:
        own = pretrained_features(parts.train, **pretrained_settings(config))
    return principal_components(own[parts.is_seen], number)


def scaling(parts: Parts, config: ConfigDict) -> Standardization | None:
    """Return the scaling of features by the training examples; None if they stay as they are."""
    if config.preprocessing.kind != "standardized":
        return None
    return standardization(parts.train, parts.is_seen)


def is_flat(config: ConfigDict) -> bool:
    """True if examples become vectors."""
    return config.preprocessing.kind in ("identity", "standardized")


def pretrained_settings(config: ConfigDict) -> dict[str, Any]:
    """Return the keywords of `pretrained_features`, and of `extraction`, that the config has."""
    wanted = config.preprocessing
    return {
        "network": wanted.network,
        "weights": wanted.weights or None,
        "root": config.dataset.root or None,
        "image_size": wanted.image_size or None,
    }


def check_kind(dataset: Dataset, config: ConfigDict) -> None:
    """Check that the examples suit the preprocessing.

    Raises:
        UsageError: the examples are no images but need to be; they are fewer than the components.
    """
    kind, x, components = config.preprocessing.kind, dataset.x, config.preprocessing.components
    wrong = allowed = ""
    if kind == "images" and x.ndim == 2:
        wrong = f"{dataset.name} has rows of {x.shape[1]} features, no images"
        allowed = "use 'standardized' for features of different units, or 'identity'"
    elif kind == "pretrained":
        try:
            check_images(x)
        except UsageError as error:
            wrong = f"{dataset.name}: {error}"
    if wrong:
        raise refused(config, "preprocessing.kind", wrong, allowed)
    if kind == "pretrained" and components > (most := min(NUM_FEATURES, len(x))):
        allowed = (
            f"use integers up to {most}, the smaller of numbers of features and training images"
        )
        raise refused(config, "preprocessing.components", "", allowed)


def check_copies(parts: Parts, config: ConfigDict) -> None:
    """Refuse copies of the examples that exceed the memory; images and float32 vectors are not copied."""
    kind, there = config.preprocessing.kind, [parts.train, parts.test, parts.public]
    if config.preprocessing.views:
        n, rows = sum(map(len, there)), num_rows(config)
        d = config.preprocessing.components or NUM_FEATURES
        what = f"{rows} rows of {d} features for each of {n} examples"
        key = "config.preprocessing.views"
        require(4 * n * rows * d, what, key=key, value=config.preprocessing.views)
    if kind == "standardized" or (kind == "identity" and parts.train.dtype != np.float32):
        num_bytes, what = 4 * sum(part.size for part in there), "a float32 copy of all examples"
        require(num_bytes, what, key="config.preprocessing.kind", value=kind)
