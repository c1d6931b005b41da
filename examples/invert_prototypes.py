"""What prototypes tell of the digits that they are made of: the tables of docs/threat-model.md.

python -m examples.invert_prototypes
"""

from functools import partial

import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

import jaxfed
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.models import MODELS
from jaxfed.privacy import prototype_inversion as attack
from jaxfed.training.local.batches import Batches

SHAPE, NUM_CLIENTS, NUM_PUBLIC, NUM_TARGETS, GALLERY = (8, 8, 1), 10, 897, 50, 30
DENSE = MODELS["mlp"](SHAPE, None, hidden=(128,))
CONVOLUTIONS = MODELS["cnn"](SHAPE, None)
CASES = [(num_labels, sigma) for num_labels in (1, 2, 5) for sigma in (0.0, 0.1, 0.5)]


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
        "inverted": attack.inverted(features, prototypes, SHAPE, jax.random.key(0)),
        "decoded": attack.decoded(
            prototypes, np.asarray(features(public_x)), public_x, noise=sigma
        ),
    }
    found = {name: np.asarray(images) for name, images in found.items()}
    nearest = {
        name: np.max([attack.psnr(images, own[:, i]) for i in range(num_labels)], axis=0).mean()
        for name, images in found.items()
    }
    hits = {name: identified(found[name], x[galleries], num_labels) for name in found}
    return [*nearest.values(), 100 * hits["inverted"], 100 * hits["decoded"]]


def identified(found, galleries, num_labels):
    """The share of reconstructions that are nearest to one of their own images, which come first."""
    own = np.arange(GALLERY)[None] < num_labels
    return np.mean(
        [attack.identified(one[None], g, own)[0] for one, g in zip(found, galleries, strict=True)]
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
