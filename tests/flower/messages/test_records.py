"""Records: one encoding, nothing lost on the way, and every other form refused."""

import json
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
    "keys": jax.random.split(jax.random.key(1), 2),
    "rbg": jax.random.key(2, impl="rbg"),
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
        st.sampled_from([np.float32, ">f8", np.uint8, np.bool_, ">i2", np.complex64]),
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
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        data = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        return str(leaf.dtype), leaf.shape, data.tobytes()

    return jax.tree.map(of, tree)


@pytest.mark.parametrize("template", [TREE, template_of(TREE)], ids=["values", "structs"])
def test_a_tree_comes_back_bit_for_bit(template):
    content = records.to_bytes(pytrees.to_record(TREE))
    assert bits(pytrees.from_record(records.from_bytes(content), template)) == bits(TREE)


def test_a_tree_may_be_a_single_leaf():
    assert pytrees.from_record(pytrees.to_record(np.arange(3)), np.zeros(3, int)).tolist() == [
        0,
        1,
        2,
    ]


def test_arrays_that_come_back_can_be_written():
    record = records.decode(*records.encode({"a": np.zeros(2)}))
    record["a"][0] = 1


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


CHANGES = {
    "order of names": lambda r: {"b": r["a"], "a": r["b"]},
    "a value": lambda r: r | {"b": 4},
    "a type": lambda r: r | {"b": 3.0},
    "a truth value": lambda r: r | {"b": True},
    "a dtype": lambda r: r | {"a": r["a"].view(np.int32)},
    "a shape": lambda r: r | {"a": r["a"].reshape(2, 1)},
    "bytes for an array": lambda r: r | {"a": r["a"].tobytes()},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_fingerprint_sees_every_change(change):
    record = {"a": np.ones(2, np.float32), "b": 3}
    assert records.fingerprint(CHANGES[change](record)) != records.fingerprint(record)


def test_bytes_are_those_of_the_values():
    record = {"a": np.zeros((2, 3), np.float32), "b": b"123", "c": "é", "d": 1, "e": 1.0, "f": True}
    assert records.num_bytes(record) == 24 + 3 + 2 + 8 + 8 + 1


@pytest.mark.parametrize(
    "value", [None, [1], np.array(["a"]), np.array([None]), np.zeros(1, "M8[s]"), np.float32(1)]
)
def test_other_values_cannot_be_sent(value):
    with pytest.raises(TypeError, match=r"^x: .*cannot be sent$"):
        records.encode({"x": value})


def test_other_leaves_cannot_be_sent():
    with pytest.raises(TypeError, match=r"^x\.0: object cannot be sent$"):
        pytrees.to_record({"x": [object()]})
    with pytest.raises(ValueError, match=r"two leaves of a tree have the name a\.b"):
        pytrees.to_record({"a": {"b": 1}, "a.b": 2})


HEADS = [
    b"",
    b"{}}",
    b"\xff",
    b"3",
    b"[3]",
    b"[[]]",
    b'{"a":1}',
    b"[" * 100_000,
    *(
        json.dumps(head).encode()
        for head in (
            [["a", "bytes", -1]],
            [["a", "bytes", True]],
            [["a", "bytes", 1.0]],
            [["a", "bytes"]],
            [["a", "pickle", 0]],
            [["a", "value", None]],
            [["a", "value", [1]]],
            [["a", "value", 1, 2]],
            [[1, "value", 1]],
            [["b", "value", 1], ["a", "value", 1]],
            [["a", "value", 1], ["a", "value", 1]],
            [["a", "array", "object", []]],
            [["a", "array", ["float32"], [0]]],
            [["a", "array", "float32", [-1, 0]]],
            [["a", "array", "float32", 0]],
            [["a", "array", "float32", [1]]],
            [["a", "array", "float32", [10**30, 0]]],
            [["a", "array", "float32", [10**30]]],
            [["a", "array", "float32", [0] * 100]],
            [["a", "array", "float32", "0"]],
        )
    ),
]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head[:40].decode(errors="replace"))
def test_a_malformed_head_is_a_bad_message(head):
    with pytest.raises(BadMessage) as caught:
        records.decode(head, b"")
    assert "\n" not in str(caught.value)


@given(st.data())
def test_a_changed_file_is_noticed(data):
    content = records.to_bytes({"a": np.arange(3), "b": "text"})
    place = data.draw(st.integers(0, len(content) - 1))
    changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    for damaged in (changed, content[:place]):
        with pytest.raises(BadMessage):
            records.from_bytes(damaged)


WRONG = {
    "missing": ({}, "w is missing"),
    "more": ({"w": np.zeros(2, np.float32), "v": 1}, "v is unexpected"),
    "several": ({"w": 1, "v": 1, "u": 2, "x": 3}, "u, v and 1 more are unexpected"),
    "shape": ({"w": np.zeros(3, np.float32)}, r"w is float32 \[3\], not float32 \[2\]"),
    "dtype": ({"w": np.zeros(2)}, r"w is float64 \[2\], not float32 \[2\]"),
    "type": ({"w": b"01234567"}, "w is bytes, not an array"),
    "nan": ({"w": np.array([0, np.nan], np.float32)}, "w is not finite"),
    "infinity": ({"w": np.array([0, np.inf], np.float32)}, "w is not finite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_record_of_another_form_is_a_bad_message(case):
    record, reason = WRONG[case]
    with pytest.raises(BadMessage, match=f"^{reason}$"):
        pytrees.from_record(record, {"w": jax.ShapeDtypeStruct((2,), jnp.float32)})


@pytest.mark.parametrize(
    ("value", "template"),
    [
        (True, 1),
        (1, True),
        (1, 1.0),
        (1.0, 1),
        ("a", b"a"),
        (np.zeros(()), 1.0),
        (float("nan"), 1.0),
    ],
)
def test_a_plain_value_of_another_type_is_a_bad_message(value, template):
    with pytest.raises(BadMessage, match=r"^n is"):
        pytrees.from_record({"n": value}, {"n": template})


def test_infinity_passes_where_it_is_meant():
    record = {"w": np.array([np.inf], jnp.bfloat16), "x": -np.inf}
    template = {"w": jax.ShapeDtypeStruct((1,), jnp.bfloat16), "x": 0.0}
    assert pytrees.from_record(record, template, finite=False)["x"] == -np.inf
    with pytest.raises(BadMessage, match=r"^w is not finite$"):
        pytrees.from_record(record, template)


def test_named_values_are_checked():
    record = {"number": 3, "text": "abc", "truth": True, "huge": 2**70}
    assert records.whole_number(record, "number") == 3
    assert records.text(record, "text") == "abc"
    for wrong in (
        lambda: records.whole_number(record, "truth"),
        lambda: records.whole_number(record, "text"),
        lambda: records.whole_number(record, "none"),
        lambda: records.whole_number(record, "huge"),
        lambda: records.whole_number(record, "number", least=4),
        lambda: records.whole_number(record, "number", most=2),
        lambda: records.text(record, "number"),
        lambda: records.text(record, "text", longest=2),
    ):
        with pytest.raises(BadMessage):
            wrong()


def test_parts_have_their_own_names():
    record = records.prefixed({"x": 1}, "a") | records.prefixed({"x": 2}, "ab")
    assert record == {"a.x": 1, "ab.x": 2}
    assert records.part(record, "a") == {"x": 1}
