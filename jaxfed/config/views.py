"""Views of images whose features a pretrained network computes: `preprocessing.views`.

    x_i = [f(image_i), f(a_1(image_i)), .., f(a_V(image_i)), f(A_1(image_i)), .., f(A_V(image_i))]

f is the pretrained network, a_v are draws of `training.augmentation` and A_v of
`training.strong_augmentation`, made once before training. Where training augments example i, it draws one of
its V rows, uniformly; everywhere else an example is its first row. So methods that compare two views of an
image can train a small network on features: a step costs thousands of times less than one through f. V draws
stand for new ones in every step, which is what the methods' papers have.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.errors import section
from jaxfed.random_streams import Stream
from jaxfed.training.local import augmentation
from jaxfed.training.local.losses import Augment

_AT_ONCE = 500  # images
KINDS = ("augmentation", "strong_augmentation")


def view_rows(config: ConfigDict) -> dict[str, range]:
    """Return key of `training` -> rows of an example that are its views."""
    number = config.preprocessing.views
    there = [key for key in KINDS if number and config.training[key]]
    return {key: range(1 + i * number, 1 + (i + 1) * number) for i, key in enumerate(there)}


def num_rows(config: ConfigDict) -> int:
    """Return the number of rows of an example: its own and one for each view."""
    return 1 + sum(map(len, view_rows(config).values()))


def change_of(config: ConfigDict, key: str) -> Augment | None:
    """Return the change of a batch that `training.KEY` describes, or the draw of a view in its place."""
    rows = view_rows(config).get(key)
    return augmentation.compose(config.training[key]) if rows is None else _one_of(rows)


def _one_of(rows: range) -> Augment:
    def draw(key: jax.Array, x: jax.Array) -> jax.Array:
        """[B, 1 + 2 V, D] -> [B, 1, D]."""
        drawn = jax.random.randint(key, (len(x),), rows.start, rows.stop)
        of_all = x.reshape(-1, x.shape[-1])
        return of_all[jax.numpy.arange(len(x)) * x.shape[1] + drawn][:, None]

    return draw


def with_views(
    own: np.ndarray,
    images: np.ndarray,
    config: ConfigDict,
    features: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Compute features of views of images [n, H, W, c], beside their own, [n, D].

    Returns:
        float32 [n, 1 + V (number of kinds of views), D].
    """
    found = [own]
    key = jax.random.fold_in(jax.random.key(config.seed), Stream.VIEWS)
    for kind, rows in view_rows(config).items():
        augment = augmentation.compose(config.training[kind])
        assert augment is not None  # or it would have no rows
        change = jax.jit(augment)
        for row in rows:
            row_key = jax.random.fold_in(key, row)
            seen = [
                _as_bytes(change(jax.random.fold_in(row_key, i), images[i : i + _AT_ONCE]))
                for i in range(0, len(images), _AT_ONCE)
            ]
            found.append(features(np.concatenate(seen)))
    return np.stack(found, axis=1)


def _as_bytes(images: jax.Array) -> np.ndarray:
    return np.rint(np.asarray(images) * np.float32(255)).astype(np.uint8)


def check_augmentation(config: ConfigDict, key: str, x: np.ndarray) -> None:
    """Check that `training.KEY` can augment examples of this shape and range, x [n, ...]."""
    augment = augmentation.compose(config.training[key])
    if augment and not config.preprocessing.views:  # with views, images are augmented before
        examples = jax.ShapeDtypeStruct((1, *x.shape[1:]), jax.numpy.float32)
        with section("config.training", {"augmentation": key}):
            augmentation.check_levels(augment, x)
            jax.eval_shape(augment, jax.random.key(0), examples)
