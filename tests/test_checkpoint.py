from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.checkpoint import Checkpoints


class State(NamedTuple):
    params: dict[str, object]
    key: object
    count: object


STATES = {
    "arrays": State({"w": jnp.arange(6.0).reshape(2, 3), "b": np.int8([1, 2])}, (), None),
    "typed key": State({}, jax.random.key(3), None),
    "batch of keys": State({}, jax.random.split(jax.random.key(3, impl="rbg"), 2), None),
    "bfloat16": State({"w": jnp.bfloat16(1.5)}, (), None),
    "python numbers": State({"a": 3, "b": 2.5, "c": True}, (), None),
    "numpy scalar": State({}, (), np.float32(0.1)),
    "no points": State({"w": jnp.zeros((0, 3)), "x": np.ones(2)}, (), None),
    "only empty arrays": np.zeros((0, 3), np.int32),
    "nothing": (),
    "bare array": np.arange(3),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_state_comes_back_bit_for_bit(state, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {"step": 1})
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.latest_state(template=state)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for ours, theirs in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        if isinstance(theirs, np.generic):
            theirs = np.asarray(theirs)
        assert type(ours) is type(theirs)
        if isinstance(theirs, jax.Array) and jnp.issubdtype(theirs.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(ours) == jax.random.key_impl(theirs)
            ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype
        np.testing.assert_array_equal(ours, theirs)


def test_shapes_may_differ_from_the_template(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"seen": np.arange(5)}, {})
        restored = checkpoints.latest_state(template={"seen": np.zeros(0, np.int64)})
    np.testing.assert_array_equal(restored["seen"], np.arange(5))


def test_only_the_newest_are_kept(tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"step": np.int32(step)}, {"step": step})
        assert checkpoints.latest_progress() == {"step": 3}
        assert checkpoints.latest_state({"step": np.int32(0)})["step"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]


def test_nothing_saved_yet(tmp_path):
    with Checkpoints(tmp_path / "new") as checkpoints:
        assert checkpoints.latest_progress() is None
        with pytest.raises(ValueError, match="no checkpoint"):
            checkpoints.latest_state(())


def test_another_structure_is_refused(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"a": np.ones(2)}, {})
        with pytest.raises(ValueError, match=r"\['a'\].*\['b'\]"):
            checkpoints.latest_state({"b": np.ones(2)})
