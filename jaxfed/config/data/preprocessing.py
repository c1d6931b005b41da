"""Preprocessing of a data set's examples before they are split among clients: `preprocessing.kind`.

`federated_features` are those of a model that the clients train together first: XCLP's `finetuned` and
`linear`.

    f = head . features  <-  FedAvg on the labels that clients have     (sections `model`, `training`)
    v_i = features(x_i),   predicted_i = argmax_c f(x_i)_c              for labeled, unlabeled and new points

(XCLP, Section 4.1 and B.1.) Training uses each client's labeled examples only; the finished model embeds all
points. Training has `preprocessing.rounds` rounds of `preprocessing.cohort_size` clients. With 0 rounds the
model of `training.initial_model` is used unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from jaxfed.config.assembly import make_algorithm, trained_network, view_rows
from jaxfed.config.keys import refused
from jaxfed.data import Partition
from jaxfed.data.dataset import Gaps
from jaxfed.data.encoding import (
    Projection,
    Standardization,
    flat,
    principal_components,
    standardization,
)
from jaxfed.data.features import pretrained_features
from jaxfed.data.mapped_rows import adjoined
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, has_diverged
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution import require
from jaxfed.federation.rounds import cohorts_of, play
from jaxfed.host.checkpoint import Checkpoints, CheckpointWriter
from jaxfed.kernels.devices import in_batches
from jaxfed.models import Model
from jaxfed.random_streams import Stream
from jaxfed.training.local import augmentation

Report = Callable[[int, int], None]  # examples of one part or rounds done, and in all
_STREAM = 2**32 - 1  # key stream; the experiment's own rounds count from 0
BATCH = 256  # examples at a time in inference
_AT_ONCE = 500  # images that are augmented


class Parts(NamedTuple):
    """Examples [n, ...] that are preprocessed in the same way; a federation numbers them in this order."""

    train: np.ndarray
    test: np.ndarray  # the test split of a set that has one of its own
    # bool [n], outside a drawn test split; for statistics
    is_seen: np.ndarray | slice = slice(None)
    gaps: Gaps | None = None  # what filled the gaps of all parts; None if no value is missing

    @property
    def arrays(self) -> list[np.ndarray]:
        """The training split, and the test split if it is not empty."""
        return [self.train, self.test][: 1 + bool(len(self.test))]


def preprocessed(
    parts: Parts, config: ConfigDict, report: Report = lambda done, total: None
) -> np.ndarray:
    """Return all examples as the config's methods take them.

    `images` and `federated_features` are as stored, bytes as bytes; models normalize them. All others are
    float32 [n, d]; with `preprocessing.views` they are [n, rows, d]. `standardized` scales every feature to
    mean 0 and variance 1 over the training examples, without test examples drawn from the training split.
    """
    if (kind := config.preprocessing.kind) == "pretrained":
        return adjoined(_features(parts, config, report))
    if kind == "standardized" or (kind == "identity" and parts.train.dtype != np.float32):
        num_bytes = 4 * sum(part.size for part in parts.arrays)
        require(num_bytes, "a float32 copy", key="config.preprocessing.kind", value=kind)
    scale = scaling(parts, config)
    examples = scale(*parts.arrays) if scale else adjoined(parts.arrays)
    return flat(examples) if is_flat(config) else examples


def _features(parts: Parts, config: ConfigDict, report: Report) -> list[np.ndarray]:
    train, *others = parts.arrays
    rows = 1 + sum(map(len, view_rows(config).values()))
    settings = pretrained_settings(config)

    def features(images: np.ndarray) -> np.ndarray:
        return pretrained_features(
            images, progress=lambda done: report(done, len(images)), **settings
        )

    of_train = features(train)
    project = projection(parts, config, of_train) or (lambda features: features)
    rest = [project(features(part)) for part in others]
    if not config.preprocessing.views:
        return [project(of_train), *rest]
    of_views = [project(features(images)) for images in _views(train, config)]
    # Nobody trains on the others: their features stand in place of views.
    others_rows = (np.repeat(part[:, None], rows, axis=1) for part in rest)
    return [np.stack([project(of_train), *of_views], axis=1), *others_rows]


def _views(images: np.ndarray, config: ConfigDict) -> Iterator[np.ndarray]:
    """Yield each view of all images, uint8 [n, H, W, c], in the order of rows (`view_rows`)."""
    key = jax.random.fold_in(jax.random.key(config.seed), Stream.VIEWS)
    for kind, rows in view_rows(config).items():
        augment = augmentation.compose(config.training[kind])
        assert augment is not None  # or it would have no rows
        change = jax.jit(augment)
        for row in rows:
            row_key = jax.random.fold_in(key, row)
            seen = (
                np.asarray(change(jax.random.fold_in(row_key, i), images[i : i + _AT_ONCE]))
                for i in range(0, len(images), _AT_ONCE)
            )
            in_bytes = [np.rint(part * np.float32(255)).astype(np.uint8) for part in seen]
            yield np.concatenate(in_bytes)


def projection(
    parts: Parts, config: ConfigDict, of_train: np.ndarray | None = None
) -> Projection | None:
    """Return the projection of features onto principal components, or None; `of_train`: training features."""
    if not (number := config.preprocessing.components):
        return None
    if of_train is None:
        of_train = pretrained_features(parts.train, **pretrained_settings(config))
    return principal_components(of_train[parts.is_seen], number)


def scaling(parts: Parts, config: ConfigDict) -> Standardization | None:
    """Return the scaling of features by the training examples; None if they stay as they are."""
    if config.preprocessing.kind != "standardized":
        return None
    return standardization(parts.train, parts.is_seen)


def is_flat(config: ConfigDict) -> bool:
    """True if examples become vectors."""
    return config.preprocessing.kind in ("identity", "standardized")


def pretrained_settings(config: ConfigDict) -> dict[str, Any]:
    """Return the keywords of `pretrained_features`, and of `extraction`."""
    wanted = config.preprocessing
    return {
        "network": wanted.network,
        "root": config.dataset.root or None,
        "image_size": wanted.image_size or None,
    }


@dataclass(frozen=True)
class FeatureTraining:
    """A model, and the FedAvg that trains it on the clients' labels before a repeat's first round."""

    config: ConfigDict
    federation: Federation
    seed: int
    model: Model
    algorithm: FederatedAlgorithm

    def with_features(self, checkpoints: Checkpoints | None, report: Report) -> Federation:
        """Return the clients with features x, float32 [n, D], and `predicted`, int32 [n]."""
        state, model = self.trained(checkpoints, report), self.model

        @jax.jit
        def infer(state: nnx.State, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
            features = model.features(state, batch)
            return features, jnp.argmax(model.head(state, features), axis=-1).astype(jnp.int32)

        features, predicted = in_batches(partial(infer, state), self.federation.x, BATCH)
        if not np.isfinite(features).all():
            raise self._divergence("the model's features are not finite")
        return replace(self.federation, x=features, predicted=predicted)

    def trained(
        self, checkpoints: Checkpoints | None, report: Report = lambda done, total: None
    ) -> nnx.State:
        """Return the model's state after all rounds; training resumes from `checkpoints`, if given."""
        config, federation = self.config, labeled_part(self.federation)
        rounds, every = config.preprocessing.rounds, config.checkpoint_every
        key = jax.random.fold_in(jax.random.key(self.seed), _STREAM)
        state = self.algorithm.init(jax.random.fold_in(key, 0), federation)
        saved = checkpoints.latest() if checkpoints else None
        done = saved.progress["round"] if saved else 0
        if saved:
            state = saved.state(template=state)
        writer = CheckpointWriter(checkpoints, every) if checkpoints else nullcontext()
        cohort_of = cohorts_of(self.algorithm, federation, config, self.seed, rounds)
        left = range(done + 1, rounds + 1)
        with (
            closing(play(self.algorithm, state, left, cohort_of=cohort_of, key=key)) as played,
            writer as saves,
        ):
            for number, _, state, metrics, *_ in played:
                if has_diverged(metrics):
                    raise self._divergence(f"the loss of round {number} is not finite")
                is_last = number == rounds
                if saves and (is_last or saves.are_due(number, is_last=is_last)):
                    saves.save(number, state, {"round": number}, at_once=is_last)
                report(number, rounds)
        return state.model

    def _divergence(self, why: str) -> UsageError:
        wrong = f"federated_features: {why}; training diverged"
        return refused(self.config, "training.learning_rate", wrong, "lower it")


def feature_training(config: ConfigDict, federation: Federation, repeat: int) -> FeatureTraining:
    """Make the model and its training of a repeat."""
    feature_config, training = config.copy_and_resolve_references(), labeled_part(federation)
    feature_config.rounds = max(1, config.preprocessing.rounds)
    feature_config.cohort_size, feature_config.sampling = (
        config.preprocessing.cohort_size,
        "uniform",
    )
    feature_config.training.labeled_only_rounds = 0
    feature_config.unlock()
    feature_config.fedavg = ConfigDict()  # without settings of the method of that name
    algorithm = make_algorithm(feature_config, "fedavg", training, repeat)
    model, _ = trained_network(config, training, repeat)
    return FeatureTraining(feature_config, federation, config.seed + repeat, model, algorithm)


def labeled_part(federation: Federation) -> Federation:
    """Return the same clients with their labeled examples only."""
    labeled = federation.partition.labeled
    nothing = tuple(points[:0] for points in labeled)
    return federation.with_partition(Partition(labeled, nothing, nothing))
