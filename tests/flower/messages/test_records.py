"""Records: one encoding, nothing lost on the way, and every other form refused."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from jaxfed.flower.messages import pytrees, records
from jaxfed.flower.messages.records import BadMessage


class Pair(NamedTuple):
    first: object
    second: object


TREE = {
    "layers": Pair(jnp.ones((2, 3), jnp.bfloat16), (np.float32(3), None, ())),
    "empty": np.zeros((0, 3), np.int8),
    "plain": {"int": -3, "text": "naïve \ud800", "bytes": b"\0\1", "float": 1.5, "bool": True},
}
VALUES = st.one_of(
    st.binary(max_size=9),
    st.text(max_size=9),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    arrays.arrays(
        st.sampled_from([np.float32, ">f8", np.uint8, np.bool_, ">i2"]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
)


def template_of(tree):
    return jax.tree.map(
        lambda leaf: (
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else leaf
        ),
        tree,
    )


def bits(tree):
    def of(leaf):
        if not hasattr(leaf, "dtype"):
            return type(leaf), leaf
        return str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()

    return jax.tree.map(of, tree)


@pytest.mark.parametrize("template", [TREE, template_of(TREE)], ids=["values", "structs"])
def test_a_tree_comes_back_bit_for_bit(template):
    content = records.to_bytes(pytrees.to_record(TREE))
    assert bits(pytrees.from_record(records.from_bytes(content), template)) == bits(TREE)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5))
def test_equal_records_have_one_encoding_in_any_order(record):
    head, payload = records.encode(record)
    back = records.decode(head, payload)
    assert records.encode(back) == (head, payload)
    assert records.encode(dict(reversed(record.items()))) == (head, payload)
    assert back.keys() == record.keys()
    for name, value in record.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(back[name], value)
        else:
            assert (type(back[name]), back[name]) == (type(value), value)
    assert records.num_bytes(back) == records.num_bytes(record)


def test_bytes_are_those_of_the_values():
    record = {"a": np.zeros((2, 3), np.float32), "b": b"123", "c": "é", "d": 1, "e": 1.0, "f": True}
    assert records.num_bytes(record) == 24 + 3 + 2 + 8 + 8 + 1


@given(st.data())
def test_a_changed_file_is_noticed(data):
    content = records.to_bytes({"a": np.arange(3), "b": "text"})
    place = data.draw(st.integers(0, len(content) - 1))
    changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    for damaged in (changed, content[:place]):
        with pytest.raises(BadMessage):
            records.from_bytes(damaged)


def test_infinity_passes_where_it_is_meant():
    record = {"w": np.array([np.inf], jnp.bfloat16), "x": -np.inf}
    template = {"w": jax.ShapeDtypeStruct((1,), jnp.bfloat16), "x": 0.0}
    assert pytrees.from_record(record, template, finite=False)["x"] == -np.inf
    with pytest.raises(BadMessage, match=r"^w is not finite$"):
        pytrees.from_record(record, template)


class Fields(NamedTuple):
    number: int
    shape: tuple[int, ...]
    pair: Pair | None = None


class Sums(NamedTuple):
    total: np.ndarray


class WithSums(NamedTuple):
    name: str
    sums: Sums | None


def test_named_tuples_come_back():
    value = WithSums("é", Sums(np.array([0.1, 1e300])))
    back = records.unpacked(WithSums, records.packed(value))
    assert (back.name, back.sums.total.tolist()) == ("é", [0.1, 1e300])
    assert records.unpacked(Fields, records.packed(Fields(3, (1, 2)))) == Fields(3, (1, 2))
    for wrong in ({"number": True}, {"shape": "[1.0]"}, {"shape": 1}, {"number": None}, {"x": 1}):
        with pytest.raises(BadMessage, match=r"^fields is malformed: "):
            records.unpacked(Fields, {"number": 3, "shape": "[1]"} | wrong)
