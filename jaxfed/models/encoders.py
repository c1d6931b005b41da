"""Pretrained networks of images: an EfficientNet by name, a Vision Transformer by folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.host.location import location
from jaxfed.kernels.images import Images, squares
from jaxfed.models import efficientnet as nets
from jaxfed.models import vision_transformer as transformers
from jaxfed.models.model import Model

_KEY = "config.preprocessing.network"


class Encoder(NamedTuple):
    """A pretrained network, and how it expects images.

    Fields:
        network: a key of `jaxfed.models.efficientnet.NETWORKS`, or a folder.
        files: its weights, and of a folder its settings.
        image_size: pixels a side; None: as the folder's preprocessor_config.json says.
        form, images: of a folder.
        key: config key that names the folder, for errors.
    """

    network: str
    files: tuple[Path, ...]
    image_size: int | None
    form: transformers.Form | None = None
    images: Images | None = None
    key: str = _KEY

    @property
    def num_features(self) -> int:
        """Length of a feature vector."""
        return self.form.width if self.form else nets.NUM_FEATURES

    @property
    def name(self) -> str:
        """A word for files."""
        network = f"vit{self.form.width}x{self.form.depth}" if self.form else self.network
        return f"{network}-{self.image_size or 'own'}"

    def named_files(self, of_folder: str, of_weights: str) -> dict[str, Path]:
        """Return the files by the key that names them, of a folder each beside its own name."""
        if self.form is None:
            return {of_weights: self.files[0]}
        return {f"{of_folder} ({file.name})": file for file in self.files}

    def model(self) -> Model:
        """Return the network, whose features are those of `prepared` images."""
        if self.form:
            return transformers.network(self.form, None)
        return nets.efficientnet(self.network)

    def prepared(self, images: jax.Array) -> jax.Array:
        """Resize and normalize images [n, h, w, 1 or 3] of values from 0 to 255."""
        if self.form is None or self.images is None:
            size = self.image_size or nets.IMAGE_SIZE
            mean, deviation, _ = nets.NETWORKS[self.network]
            return squares(images, size, mean, deviation)
        with transformers.of_folder(self.key, self.network):
            x = self.images.prepared(images, self.image_size)
            if min(x.shape[1:3]) < self.form.patch:
                small = f"images of {x.shape[1]} x {x.shape[2]} are smaller than a patch"
                raise UsageError(f"{small} ({self.form.patch})")
        return x

    @property
    def scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each channel of images from 0 to 1."""
        if self.images is None:
            mean, deviation, _ = nets.NETWORKS[self.network]
            return np.asarray(mean) / 255, np.asarray(deviation) / 255
        unit = 255 * self.images.factor
        return np.asarray(self.images.mean) / unit, np.asarray(self.images.deviation) / unit

    def read(self, template: nnx.State, *, new_head: bool = False) -> nnx.State:
        """Read the weights into a state like `template`, whose head stays with `new_head`."""
        if self.form is None:
            return nets.read_weights(self.files[0], template, new_head=new_head)
        with transformers.of_folder(self.key, self.network):
            return transformers.read_state(self.network, template, new_head=new_head)


def find_encoder(
    network: str,
    weights: str | os.PathLike[str] | None = None,
    root: str | None = None,
    image_size: int | None = None,
    *,
    key: str = _KEY,
) -> Encoder:
    """Find a pretrained network; arguments as those of `jaxfed.data.features.pretrained_features`.

    Raises:
        UsageError: no such network or folder, or files that cannot be read. It begins with `key`.
    """
    if network in nets.NETWORKS:
        file = nets.find_weights(network, weights, root)
        return Encoder(network, (file,), image_size or nets.IMAGE_SIZE)
    folder = location(network, key)
    names = transformers.CONFIG, transformers.WEIGHTS, transformers.PREPROCESSOR
    files = tuple(folder / name for name in names)
    if missing := [file.name for file in files if not file.is_file()]:
        wrong = f"has no {', '.join(missing)}" if folder.is_dir() else "no such network or folder"
        if (folder / f"{transformers.WEIGHTS}.index.json").exists():
            wrong = "its weights are in several files, which are not read"
        allowed = f"use {', '.join(map(repr, nets.NETWORKS))}, or a folder with {', '.join(names)}"
        raise UsageError(wrong, key=key, value=network, allowed=allowed)
    with transformers.of_folder(key, network):
        form, images = transformers.read_form(folder), transformers.read_images(folder)
    return Encoder(str(folder), files, image_size, form, images, key)


def num_features(network: str) -> int:
    """Return the length of a network's feature vectors; an EfficientNet's needs no file."""
    return nets.NUM_FEATURES if network in nets.NETWORKS else find_encoder(network).num_features
