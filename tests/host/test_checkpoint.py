from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.host import storage
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.row_table import RowTable


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
    Checkpoints(tmp_path).save(1, state, {"step": 1})
    restored = Checkpoints(tmp_path).latest().state(template=state)
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


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "run[1]" / "*" / "ünïcode")


def test_a_template_has_names_of_today_other_shapes_and_may_be_a_part(checkpoints):
    table = RowTable(4, np.zeros(2)).replaced([1, 3], np.ones((2, 2)))
    model = {"lesson": {"own": np.ones(2, np.float32)}, "is_there": table}  # earlier names
    checkpoints.save(1, {"model": model, "other": 3}, {})
    shapes = jax.eval_shape(lambda: {"data": {"labeled": jnp.zeros(0)}})
    restored = checkpoints.latest().state(shapes | {"is_present": table}, part="model")
    assert [*restored["data"]["labeled"], *restored["is_present"][3]] == [1, 1, 1, 1]


def test_only_the_newest_are_kept(checkpoints):
    assert checkpoints.latest() is None
    assert not checkpoints.path.exists()
    checkpoints.path.mkdir(parents=True)
    (checkpoints.path / ".2.npz.123.partial").write_bytes(b"half")  # of a killed save
    for step in (1, 9, 10):
        checkpoints.save(step, {"step": np.int32(step)}, {"step": step})
    latest = checkpoints.latest()
    assert latest.progress == {"step": 10}
    assert latest.state({"step": np.int32(0)})["step"] == 10
    assert sorted(path.name for path in checkpoints.path.iterdir()) == ["10.npz", "9.npz"]


def test_one_that_does_not_fit_is_passed_over(checkpoints):
    for step in (1, 2):
        checkpoints.save(step, (), {"step": step})
    fits_first = {1: "", 2: "other lines"}
    assert checkpoints.latest(lambda p: fits_first[p["step"]]).progress == {"step": 1}


def test_a_full_disk_leaves_what_was_there(checkpoints, full_disk):
    checkpoints.save(1, np.arange(3), {"step": 1})
    for size in (10, 100, 10**5):
        with full_disk(after=400), pytest.raises(OSError) as caught:
            checkpoints.save(2, np.arange(size), {"step": 2})
        assert storage.is_full(caught.value)
        assert [file.name for file in checkpoints.path.iterdir()] == ["1.npz"]
    assert checkpoints.latest().progress == {"step": 1}
