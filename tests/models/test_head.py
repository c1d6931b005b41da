"""The head's parameters in a state, of every kind of network."""

import jax
import numpy as np
import pytest
from small_networks import DeepHead

from jaxfed.models import MODELS
from jaxfed.models.head import dense_head, head_paths, leaf_of, with_leaf
from jaxfed.models.model import from_module

BODY = {"hidden": (8,)}


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [("mlp", (4,), BODY), ("linear_mlp", (4,), {}), ("cnn", (28, 28, 1), {})],
)
def test_a_dense_head_is_found_by_what_it_reads(name, shape, options):
    model = MODELS[name](shape, 3, **options)
    assert head_paths(model, "m") == {("head", "kernel"), ("head", "bias")}
    assert dense_head(model, "m").kernel == ("head", "kernel")


@pytest.mark.slow
def test_resnet9_has_no_bias_and_efficientnet_another_name():
    assert head_paths(MODELS["resnet9"]((32, 32, 3), 3), "m") == {("head", "kernel")}
    lite = MODELS["efficientnet_lite0"]((32, 32, 3), 3)
    assert dense_head(lite, "m") == (("classifier", "kernel"), 1280, 3)


def test_a_deep_head_is_read():
    model = from_module(DeepHead)
    assert {path[0] for path in head_paths(model, "m")} == {"b", "c"}


def test_a_leaf_is_read_and_replaced():
    state = MODELS["mlp"]((4,), 3, **BODY).init(jax.random.key(0))
    path = ("head", "kernel")
    changed = with_leaf(state, path, leaf_of(state, path) + 1)
    np.testing.assert_array_equal(changed["head"]["kernel"][...], state["head"]["kernel"][...] + 1)
    changed = with_leaf(changed, path, leaf_of(state, path))
    jax.tree.map(np.testing.assert_array_equal, changed, state)
