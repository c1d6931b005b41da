"""Operations of a program against counts by hand, with XLA's blind spots in view."""

import jax
import jax.numpy as jnp
import pytest

from jaxfed.kernels.conv import matmul_conv
from jaxfed.kernels.devices import operations

N, SIDE, INTO, OUT = 5, 8, 3, 16


def of(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_a_dense_layer_is_two_operations_a_multiply_add():
    assert operations(jnp.matmul, of(N, INTO), of(INTO, OUT)) == 2 * N * INTO * OUT


def loss(kernel, dense, images, convolve):
    """One convolution of 3 x 3, one dense layer, and a sum."""
    hidden = convolve(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.sum(hidden.reshape(len(images), -1) @ dense)


@pytest.mark.parametrize("convolve", [matmul_conv, jax.lax.conv_general_dilated])
def test_forward_and_backward_of_a_convolution_and_a_dense_layer(convolve):
    shapes = of(3, 3, INTO, OUT), of(SIDE * SIDE * OUT, 10), of(N, SIDE, SIDE, INTO)
    # Taps on the padding: a matrix product has them, XLA's convolution leaves them out.
    taps = (3 * SIDE) ** 2 if convolve is matmul_conv else (3 * SIDE - 2) ** 2
    convolution = 2 * N * taps * INTO * OUT
    dense = 2 * N * SIDE * SIDE * OUT * 10
    forward = operations(lambda *a: loss(*a, convolve), *shapes)
    assert forward == pytest.approx(convolution + dense, rel=0.01)
    # The kernel's gradient, the dense layer's and that of its input; of the images nobody asks.
    both = operations(lambda *a: jax.grad(loss, (0, 1))(*a, convolve), *shapes)
    assert both == pytest.approx(2 * convolution + 2 * dense, rel=0.02)


def test_loops_count_with_their_turns():
    w, x = of(64, 64), of(N, 64)
    once = operations(lambda w, x: x @ w, w, x)

    def steps(count, w, x):
        return jax.lax.fori_loop(0, count, lambda _, y: y @ w, x)

    count = jax.ShapeDtypeStruct((), jnp.int32)
    assert operations(steps, count, w, x, turns=7) == pytest.approx(7 * once, rel=0.01)

    def nested(w, x):
        return jax.lax.scan(lambda y, _: (steps(jnp.argmax(y), w, y), None), x, length=5)

    assert operations(nested, w, x, turns=3) == pytest.approx(15 * once, rel=0.05)
    assert operations(lambda w, x: jax.lax.map(lambda row: row @ w, x), w, x) == pytest.approx(
        once, rel=1e-3
    )


def test_loops_inside_of_called_functions_are_found():
    w, x = of(64, 64), of(N, 64)
    once = operations(lambda w, x: x @ w, w, x)

    @jax.jit
    def called(w, x):
        return jax.lax.fori_loop(0, 4, lambda _, y: y @ w, x)

    def one(w, x):
        return jax.lax.cond(jnp.sum(x) > 0, lambda x: called(w, x), lambda x: x, x)

    assert operations(one, w, x) == pytest.approx(4 * once, rel=0.02)
