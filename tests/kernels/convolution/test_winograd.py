import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convolutions import LAYOUT, assert_agrees_with_xla, assert_clients_need_no_convolution
from jax import lax

from jaxfed.kernels import winograd
from jaxfed.kernels.winograd import winograd_conv

SIDES = ((6, 8), (4, 4))
PADDINGS = ("SAME", "VALID", ((0, 2), (2, 0)), ((1, 1), (0, 0)))


def _operands(shape=(6, 8), images=3, channels=(5, 7), clients=()):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(*clients, images, *shape, channels[0])).astype(np.float32)
    return x, rng.normal(size=(*clients, 3, 3, *channels)).astype(np.float32)


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(winograd, "_LEAST_CHANNELS", 1)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("block_bytes", "core_bytes"), [(2**30, 2**30), (1, 2**30), (1, 0)])
@pytest.mark.sample(2)
def test_agrees_with_xla_in_value_and_derivatives(
    padding, block_bytes, core_bytes, any_size, monkeypatch
):
    monkeypatch.setattr(winograd, "_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(winograd, "_CORE_BYTES", core_bytes)
    images, kernel = _operands()
    assert winograd._saves(images, kernel, _pads(images, padding))
    assert_agrees_with_xla(winograd_conv, images, kernel, padding)


def _pads(images, padding):
    return (
        tuple(map(tuple, lax.padtype_to_pads(images.shape[1:3], (3, 3), (1, 1), padding)))
        if isinstance(padding, str)
        else padding
    )


def test_it_takes_16_products_for_four_pixels(any_size):
    """Of 2 x 2 tiles, in the program as written: where it would not, nothing else here would notice."""
    images, kernel = _operands(images=2)
    text = jax.jit(lambda *a: winograd_conv(*a, (1, 1), "SAME")).lower(images, kernel).as_text()
    assert text.count("tensor<24x5xf32>, tensor<5x7xf32>") == 16


@pytest.mark.parametrize(
    ("change", "saves"),
    [
        ({}, True),
        ({"shape": (7, 8)}, False),  # half a tile
        ({"images": 1, "shape": (4, 4)}, False),  # fewer tiles than channels
        ({"channels": (3, 64)}, False),
    ],
)
@pytest.mark.sample(2)
def test_it_is_for_many_channels_and_whole_tiles(change, saves):
    images, kernel = _operands(**{"images": 8, "channels": (32, 64), **change})
    assert winograd._saves(images, kernel, ((1, 1), (1, 1))) == saves
    np.testing.assert_allclose(
        winograd_conv(images, kernel, (1, 1), "SAME"),
        lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=LAYOUT),
        rtol=1e-4,
        atol=1e-4,
    )
    assert not winograd._saves(images.astype(jnp.bfloat16), kernel, ((1, 1), (1, 1)))


def test_clients_with_kernels_of_their_own_need_no_convolution(any_size):
    assert_clients_need_no_convolution(winograd_conv, *_operands(clients=(3,)), atol=1e-2)


@pytest.mark.parametrize(
    ("core_bytes", "few_pairs", "convolutions"), [(2**30, 35, 0), (0, 35, 1), (0, 34, 0)]
)
def test_the_derivative_of_few_channels_is_a_convolution_beyond_a_cores_cache(
    core_bytes, few_pairs, convolutions, any_size, monkeypatch
):
    monkeypatch.setattr(winograd, "_CORE_BYTES", core_bytes)
    monkeypatch.setattr(winograd, "_FEW_PAIRS", few_pairs)
    images, kernel = _operands()  # 5 x 7 channels

    def total(kernel):
        return winograd_conv(images, kernel, (1, 1), "SAME").sum()

    text = jax.jit(jax.grad(total)).lower(kernel).as_text()
    assert text.count("stablehlo.convolution") == convolutions
