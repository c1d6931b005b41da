"""What kernels refuse."""

from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import refusals

from jaxfed.kernels import edges, hamming, knn, lsh
from jaxfed.kernels.components import components
from jaxfed.kernels.conjugate_gradient import propagate, propagate_centered
from jaxfed.kernels.conv import matmul_conv
from jaxfed.kernels.devices import points_mesh
from jaxfed.kernels.direct_conv import direct_conv
from jaxfed.kernels.graph import normalized_graph
from jaxfed.kernels.ring_product import ring_product
from jaxfed.kernels.winograd import winograd_conv

CODES, KEY = np.ones((3, 2), np.uint32), jax.random.key(0)
COMPLEX, SHORT = np.ones((2, 3), np.complex64), np.zeros((2, 3), np.uint16)
RING = (np.arange(40)[:, None] + [1, 2]) % 40, np.ones((40, 2), np.float32)


def graph(indices, weight=1.0):
    shape = np.shape(indices)[:1]
    return lambda: normalized_graph(np.array(indices), np.full((*shape, 1), weight, np.float32))


def system(alpha=0.9, shape=(40, 3), dtype=np.float32, tolerance=1e-6, max_steps=9):
    options = {"tolerance": tolerance, "max_steps": max_steps}
    return lambda: propagate(normalized_graph(*RING), np.zeros(shape, dtype), alpha, **options)


def beyond_one():
    own = normalized_graph(*RING)
    propagate_centered(own, components(own), np.ones((40, 1), np.float32), 1.1)


def too_many_edges():
    listed = jax.ShapeDtypeStruct((2**31 + 1,), jnp.int32)
    jax.eval_shape(lambda targets: edges.by_target(targets, 5), listed)


GRAPHS = {
    "...outside": graph([[5]]),
    "...not finite": graph([[-1]], np.nan),
    "...one shape": graph([[0, 0]]),
    "...integers": graph([[0.0]]),
    "...alpha...1.0": system(1.0),
    "...alpha...0.0": system(0.0),
    "...float32": system(1 - 1e-9),
    "...tolerance": system(tolerance=0.0),
    "...max_steps": system(max_steps=0),
    "...y must be [n, C]": system(shape=(3, 2)),
    "...y must be real, got dtype complex64": system(dtype=np.complex64),
    "...alpha must be in": beyond_one,
    "...at most 2^31 neighbors in all, got 2147483649": too_many_edges,
}


def exact(codes=CODES, k=1, **options):
    return partial(knn.hamming_knn, codes, k, **options)


def bits(vectors, num_bits=32):
    return partial(lsh.project_bits, vectors, KEY, num_bits)


def devices(number, processes=1):
    def call():
        with mock.patch.object(jax, "process_count", return_value=processes):
            points_mesh(number)

    return call


distances, MANY = partial(hamming.distances, CODES), jax.device_count()
NEIGHBORS = {
    "...backend must be one of auto, popcount, matmul": partial(distances, CODES, backend="xor"),
    "...equal lengths, got 64 and 128 bits": partial(distances, np.ones((2, 4), np.uint32)),
    "...uint32...got int32 of shape": partial(distances, CODES.astype(np.int32)),
    "...uint32...shape (2,)": partial(distances, CODES[0]),
    "...uint32...shape (2, 0)": partial(distances, np.zeros((2, 0), np.uint32)),
    "...num_neighbors must be at least 1, got 0": exact(k=0),
    "...backend must be one of ... got 'faiss'": exact(backend="faiss"),
    "...valid must be bool of shape (3,)": exact(valid=np.ones(2, bool)),
    "...valid must be bool of shape": exact(valid=np.ones(3, int)),
    "...codes must be uint32": exact(CODES.astype(np.int64)),
    "...matrix [n, d], got shape (4,)": partial(knn.cosine_knn, np.ones(4, np.float32), 1),
    "...vectors must be real, got dtype complex64": partial(knn.cosine_knn, COMPLEX, 1),
    "...multiple of 32, got 0": bits(np.ones((2, 3)), 0),
    "...multiple of 32, got 100": bits(np.ones((2, 3)), 100),
    "...[n, d], got shape (3,)": bits(np.ones(3)),
    "...vectors must be real, got dtype complex": bits(COMPLEX),
    "...vectors must be real, got dtype": jax.jit(lambda v=COMPLEX: bits(v)()),
    "...num_neighbors must be at least 1": partial(knn.hamming_knn, CODES, 0),
    "num_devices=-1: use 0 ": devices(-1),
    f"num_devices={MANY + 1}: use 0 (all) and 1 to": devices(MANY + 1),
    f"num_devices={MANY + 1}: use 0 (all) and {MANY} to {MANY}": devices(MANY + 1, 2),
    "ring_product takes...(2, 4)": partial(ring_product, SHORT, np.zeros((2, 4), np.uint16)),
    "ring_product takes...uint8": partial(ring_product, SHORT, SHORT.astype(np.uint8)),
    "ring_product takes...(3,)": partial(ring_product, SHORT, SHORT[0]),
    "ring_product takes...int32": partial(ring_product, SHORT.astype(np.int32), SHORT),
    "ring_product takes...(3, 3, 2)": partial(ring_product, np.zeros((3, 3, 2), np.uint16), SHORT),
}


def conv(function, kernel=(3, 3, 4, 4), **given):
    images = np.zeros((2, 8, 8, 4), np.float32), np.zeros(kernel, np.float32)
    return partial(function, *images, (1, 1), "SAME", **given)


LAYOUT = ("NCHW", "OIHW", "NCHW")
CONVOLUTIONS = {
    "matmul_conv takes 1 group or": conv(matmul_conv, (4, 2, 4, 4), feature_group_count=2),
    "matmul_conv takes NHWC": conv(matmul_conv, rhs_dilation=(2, 2)),
    "matmul_conv takes NHWC  images": conv(matmul_conv, lhs_dilation=(2, 1)),
    "matmul_conv takes NHWC  layout": conv(matmul_conv, (4, 4, 3, 3), dimension_numbers=LAYOUT),
    "matmul_conv takes NHWC  direct": conv(direct_conv, rhs_dilation=(2, 2)),
    "matmul_conv takes NHWC  winograd": conv(winograd_conv, rhs_dilation=(2, 2)),
}

test_refused = refusals.table(GRAPHS | NEIGHBORS)
test_not_offered = refusals.table(CONVOLUTIONS, NotImplementedError)
