"""What prototypes tell of the digits that they are made of: two attacks, the tables of docs/threat-model.md.

python -m examples.invert_prototypes

A prototype c is the mean of f over n_k images of a class (ProtoFSSL, eq. 2). Its receivers have f, too. There
are two attacks, with little and with more knowledge:

    inverted   argmin_x |f(x) - c|^2 / |c|^2 + w TV(x),  TV(x) = mean of squared differences of neighbors
               (Mahendran, Vedaldi, CVPR 2015, with the exponent beta = 2), x in [0, 1], by Adam
    decoded    A c + b, the ridge regression of images on embeddings of public images of the same kind

The first needs only f. The second also uses the distribution of such images. As it is linear, it maps a mean
of embeddings to the mean of the reconstructions. Both recover the image behind a prototype with n_k = 1. For
larger n_k they recover approximately the images' mean, as c alone does not determine the parts.

The quality is measured by `psnr`, compared with that of a guess, and by `identified`: whether the
reconstruction is nearest to its own image among others of the class.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import jaxfed
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.models import MODELS
from jaxfed.training.local.batches import Batches

SHAPE, NUM_CLIENTS, NUM_PUBLIC, NUM_TARGETS, GALLERY = (8, 8, 1), 10, 897, 50, 30
DENSE = MODELS["mlp"](SHAPE, None, hidden=(128,))
CONVOLUTIONS = MODELS["cnn"](SHAPE, None)
Features = Callable[[jax.Array], jax.Array]  # images [n, H, W, c] -> float32 [n, D]
CASES = [(num_labels, sigma) for num_labels in (1, 2, 5) for sigma in (0.0, 0.1, 0.5)]


FARTHEST = 4.0  # bound on initial logits: pixels from 0.02 to 0.98


def inverted(
    features: Features,
    prototypes: jax.Array,
    shape: Sequence[int],
    key: jax.Array,
    *,
    total_variation: float = 0.01,
    steps: int = 500,
) -> jax.Array:
    """Images whose embeddings are nearest to prototypes, among smooth ones.

    Args:
        features: f of a batch of images with values in [0, 1]; jit-traceable, one object for many calls.
        prototypes: float32 [n, D], each attacked separately.
        shape: (H, W, c) of an image.
        key: typed, of the initial images.
        total_variation: w.
        steps: of Adam.

    Returns:
        float32 [n, H, W, c] in (0, 1).

    Cost: `steps` passes of n images through the network, forward and back.
    """
    keys = jax.random.split(key, len(prototypes))
    return _inverted(prototypes, keys, features, tuple(shape), total_variation, steps)


@partial(jax.jit, static_argnums=range(2, 6))
def _inverted(
    prototypes: jax.Array,
    keys: jax.Array,
    features: Features,
    shape: tuple[int, ...],
    total_variation: float,
    steps: int,
) -> jax.Array:
    optimizer = optax.adam(0.1)  # on the logits of pixels

    def one(prototype: jax.Array, key: jax.Array) -> jax.Array:
        scale = jnp.maximum(jnp.sum(jnp.square(prototype)), 1e-12)

        def loss(logit: jax.Array) -> jax.Array:
            image = jax.nn.sigmoid(logit)
            miss = features(image[None])[0].astype(jnp.float32) - prototype
            return jnp.sum(jnp.square(miss)) / scale + total_variation * roughness(image)

        def step(_: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            logit, state = carry
            with jax.numpy_dtype_promotion("standard"):  # Adam raises floats to an integer power
                updates, state = optimizer.update(jax.grad(loss)(logit), state)
            return logit + updates, state

        start = jax.random.uniform(key, shape, minval=-FARTHEST, maxval=FARTHEST)
        logit, _ = jax.lax.fori_loop(0, steps, step, (start, optimizer.init(start)))
        return jax.nn.sigmoid(logit)

    return jax.vmap(one)(prototypes, keys)


def roughness(image: jax.Array) -> jax.Array:
    """TV of [H, W, c]: the mean over neighbors of squared differences, down and across."""
    down, across = image[1:] - image[:-1], image[:, 1:] - image[:, :-1]
    return (jnp.sum(jnp.square(down)) + jnp.sum(jnp.square(across))) / (down.size + across.size)


def decoded(
    prototypes: np.ndarray,
    embeddings: np.ndarray,
    images: np.ndarray,
    *,
    ridge: float = 1e-3,
    noise: float = 0.0,
) -> np.ndarray:
    """Reconstruct images from prototypes by a linear decoder fitted on public images.

    Args:
        prototypes: [n, D].
        embeddings: [m, D], of the public images.
        images: [m, H, W, c], in [0, 1].
        ridge: on A, relative to the embeddings' mean variance.
        noise: sigma of the noise added to every number of the prototypes, known to the attacker.

    Returns:
        float64 [n, H, W, c] in [0, 1].
    """
    z, x = np.asarray(embeddings, np.float64), np.asarray(images, np.float64)
    mean, pixels = z.mean(axis=0), x.reshape(len(x), -1)
    centered = z - mean
    # For embeddings with that noise, this decoder is optimal without a further ridge.
    penalty = len(z) * (ridge * centered.var(axis=0).mean() + noise**2) * np.eye(z.shape[1])
    decoder = np.linalg.solve(
        centered.T @ centered + penalty, centered.T @ (pixels - pixels.mean(axis=0))
    )
    found = pixels.mean(axis=0) + (prototypes - mean) @ decoder
    return np.clip(found, 0, 1).reshape(len(prototypes), *x.shape[1:])


def psnr(found: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Peak signal-to-noise ratio in dB, float64 [n], of images in [0, 1]: -10 log10 of the squared error."""
    difference = np.asarray(found, np.float64) - images
    error = np.mean(np.square(difference).reshape(len(difference), -1), axis=1)
    return -10 * np.log10(np.maximum(error, 1e-12))


def identified(found: np.ndarray, gallery: np.ndarray, own: np.ndarray) -> np.ndarray:
    """bool [n]: True if the nearest of the gallery [g, ...] is one of the true images, `own` bool [n, g]."""
    flat, others = (np.asarray(a, np.float64).reshape(len(a), -1) for a in (found, gallery))
    distance = np.sum(np.square(flat[:, None] - others[None]), axis=-1)
    return np.take_along_axis(own, distance.argmin(axis=1)[:, None], axis=1)[:, 0]


def trained(model, x, y, rounds=20):
    """ProtoFSSL's network of ten clients, half of whose digits have labels."""
    labels = np.where(np.arange(len(y)) % (2 * NUM_CLIENTS) < NUM_CLIENTS, y, -1)
    clients = [(x[i::NUM_CLIENTS], labels[i::NUM_CLIENTS]) for i in range(NUM_CLIENTS)]
    federation = jaxfed.Federation.from_clients(clients, test=(x, y))
    training = jaxfed.Training(
        model,
        local=jaxfed.LocalTraining(
            optimizer=optax.rmsprop,
            learning_rate=lambda rounds_done: 1e-3,
            batches=Batches("joint", size=10, epochs=10),
        ),
    )
    task = PrototypeTask(num_classes=10, max_labels=federation.max_labels)
    method = jaxfed.algorithms.protofssl(training=training, task=task, unlabeled_query=40)
    return jaxfed.simulate(method, federation, rounds=rounds, cohort_size=5, seed=0).state.model


def measured(features, private, public, num_labels, sigma, rng):
    """One row: dB of guess, other, inverted and decoded to the nearest own image; who was identified."""
    (x, y), (public_x, public_y) = private, public
    classes = rng.integers(10, size=NUM_TARGETS)
    galleries = np.stack([rng.permutation(np.flatnonzero(y == c))[:GALLERY] for c in classes])
    own = x[galleries[:, :num_labels]]  # the images behind each prototype
    prototypes = np.stack([np.mean(features(images), axis=0) for images in own])
    prototypes += sigma * rng.standard_normal(prototypes.shape).astype(np.float32)
    of_class = [public_x[public_y == c] for c in classes]
    found = {
        "guess": np.stack([images.mean(axis=0) for images in of_class]),
        "other": np.stack([images[rng.integers(len(images))] for images in of_class]),
        "inverted": inverted(features, prototypes, SHAPE, jax.random.key(0)),
        "decoded": decoded(prototypes, np.asarray(features(public_x)), public_x, noise=sigma),
    }
    found = {name: np.asarray(images) for name, images in found.items()}
    nearest = {
        name: np.max([psnr(images, own[:, i]) for i in range(num_labels)], axis=0).mean()
        for name, images in found.items()
    }
    hits = {name: share_identified(found[name], x[galleries], num_labels) for name in found}
    return [*nearest.values(), 100 * hits["inverted"], 100 * hits["decoded"]]


def share_identified(found, galleries, num_labels):
    """The share of reconstructions that are nearest to one of their own images, which come first."""
    own = np.arange(GALLERY)[None] < num_labels
    return np.mean(
        [identified(one[None], g, own)[0] for one, g in zip(found, galleries, strict=True)]
    )


def table(model=DENSE, cases=CASES):
    """(n_k, sigma, figures) of every row, by a network up to its embeddings."""
    x, y = load_digits(return_X_y=True)
    x, y = x.reshape(-1, *SHAPE).astype(np.float32) / 16, y.astype(np.int32)
    public, private = (x[:NUM_PUBLIC], y[:NUM_PUBLIC]), (x[NUM_PUBLIC:], y[NUM_PUBLIC:])
    features = jax.jit(partial(model.features, trained(model, *private)))
    for num_labels, sigma in cases:
        rng = np.random.default_rng(0)
        yield num_labels, sigma, measured(features, private, public, num_labels, sigma, rng)


HEADER = (
    *("n_k", "sigma", "guess, dB", "other image, dB", "inverted, dB", "decoded, dB"),
    *("inverted, percent", "decoded, percent"),
)

if __name__ == "__main__":
    for title, model in {"a dense layer": DENSE, "convolutions": CONVOLUTIONS}.items():
        print(f"\n{title}\n\n| " + " | ".join(HEADER) + " |", flush=True)
        for num_labels, sigma, figures in table(model):
            cells = " | ".join(f"{figure:.1f}" for figure in figures)
            print(f"| {num_labels} | {sigma:g} | {cells} |", flush=True)
