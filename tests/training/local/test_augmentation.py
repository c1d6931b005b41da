"""Augmentation against NumPy and PIL."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from jaxfed.training.local import augmentation

KEYS = jax.random.split(jax.random.key(0), 400)
SIZE = 24


def photo(seed=0, channels=3, size=SIZE):
    """Bytes with structure: gradients and noise."""
    rng = np.random.default_rng(seed)
    ramp = np.add.outer(np.arange(size), np.arange(size))[..., None] * 2
    noise = rng.integers(0, 120, (size, size, channels))
    return np.clip(ramp + noise, 0, 255).astype(np.uint8)


def as_bytes(image):
    return np.round(np.asarray(image) * 255)


def all_of(change, image):
    return np.asarray(jax.jit(jax.vmap(change, in_axes=(0, None)))(KEYS, image))


@pytest.mark.parametrize(
    ("change", "mode"), [(augmentation.translate, "reflect"), (augmentation.crop, "constant")]
)
def test_shifts_are_crops_of_the_padded_image_all_equally_often(change, mode):
    """Reflected as in Mean Teacher; zeros as torchvision's RandomCrop with padding."""
    image = photo() / np.float32(255)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode=mode)
    crops = {padded[i : i + SIZE, j : j + SIZE].tobytes(): 0 for i in range(5) for j in range(5)}
    for changed in all_of(change(2), image):
        crops[changed.tobytes()] += 1  # a KeyError is a crop that is none
    assert len(crops) == 25
    assert min(crops.values()) >= 4  # expected 16


WARPED = jax.jit(lambda image, angle: augmentation.warp(image, augmentation.rotation(angle)))


@pytest.mark.parametrize("degrees", [-30.0, 10.0, 90.0])
def test_rotation_is_pils_inside(degrees):
    image = photo()
    turned = Image.fromarray(image).rotate(degrees, Image.Resampling.BILINEAR)
    ours = WARPED(image.astype(np.float32), np.float32(degrees))
    center = slice(6, 18)
    np.testing.assert_allclose(ours[center, center], np.asarray(turned)[center, center], atol=1.5)


def test_dropped_entries_of_vectors_are_zero_and_others_as_they_were():
    x = np.linspace(1, 2, 90, dtype=np.float32)
    changed = np.asarray(augmentation.compose(("drop:0.25",))(KEYS[0], np.tile(x, (400, 1))))
    kept = changed == x
    assert ((changed == 0) | kept).all()
    assert abs(kept.mean() - 0.75) < 0.01  # 4.4 standard deviations
    assert kept.any(0).all()
    assert not kept.all(0).any()


def test_holes_are_whole_squares_within_the_image_all_places_alike():
    """albumentations' CoarseDropout(1, 4, 4)."""
    image = np.ones((7, 7, 1), np.float32)
    changed = all_of(augmentation.holes(4, 1), image)[..., 0]
    places = np.zeros((4, 4), int)
    for one in changed[(changed != image[..., 0]).any(axis=(1, 2))]:
        rows, columns = (
            np.flatnonzero((one == 0).any(axis=1)),
            np.flatnonzero((one == 0).any(axis=0)),
        )
        assert len(rows) == len(columns) == 4
        assert (one == 0).sum() == 16
        places[rows[0], columns[0]] += 1
    assert 165 < places.sum() < 235
    assert places.min() >= 3  # expected 12.5


def test_cutout_grays_one_square():
    image = np.ones((SIZE, SIZE, 3), np.float32)
    for changed in all_of(augmentation.cutout(4), image)[:50]:
        gray = (changed == 0.5).all(axis=-1)
        assert ((changed == 1).all(axis=-1) | gray).all()
        rows, columns = gray.any(axis=1).sum(), gray.any(axis=0).sum()
        assert 2 <= rows <= 4
        assert 2 <= columns <= 4
        assert gray.sum() == rows * columns


def pil(name, image, level):
    picture = Image.fromarray(image.squeeze())
    enhancers = {
        "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "brightness": ImageEnhance.Brightness,
        "sharpness": ImageEnhance.Sharpness,
    }
    if name in enhancers:
        changed = enhancers[name](picture).enhance(1 + 0.9 * level)
    elif name == "solarize":
        changed = ImageOps.solarize(picture, math.ceil(255 * (1 - abs(level))))
    elif name == "posterize":
        changed = ImageOps.posterize(picture, 8 - round(4 * abs(level)))
    else:
        changed = getattr(ImageOps, name)(picture)
    return np.asarray(changed, np.float32).reshape(image.shape)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("level", [-0.6, 0.3])
@pytest.mark.parametrize(
    "name",
    [
        "autocontrast",
        "equalize",
        "solarize",
        "posterize",
        "color",
        "contrast",
        "brightness",
        "sharpness",
    ],
)
@pytest.mark.sample(11)
def test_colors_are_pils(name, level, channels):
    image = photo(1, channels)
    ours = jax.jit(getattr(augmentation, name))(image / np.float32(255), np.float32(level))
    np.testing.assert_allclose(as_bytes(ours), pil(name, image, level), atol=2)


def test_randaugment_draws_all_of_its_changes():
    image = photo(size=18) / np.float32(255)
    changed = all_of(augmentation.randaugment(1, 15), image)
    assert changed.min() >= 0
    assert changed.max() <= 1 + 1e-6
    distinct = {np.round(one, 4).tobytes() for one in changed}
    # 14 changes, of which identity, autocontrast, equalize, solarize and posterize have no sign.
    assert len(distinct) == 5 + 2 * 9


def test_composition_draws_for_each_image_and_reads_bytes():
    augment = augmentation.compose(("translate:2", "flip"))
    x = np.stack([photo()] * 6)
    program = jax.jit(augment)
    one, again = program(KEYS[0], x), program(KEYS[0], x)
    np.testing.assert_array_equal(one, again)
    assert len({image.tobytes() for image in np.asarray(one)}) > 1
    assert one.dtype == jnp.float32
    assert set(np.unique(as_bytes(one))) <= set(np.unique(x))
    assert augmentation.compose(()) is None
