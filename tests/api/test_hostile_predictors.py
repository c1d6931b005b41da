"""Predictors' files that are damaged or hostile, with checksums that fit: one line, never a traceback."""

import copy
import dataclasses
import functools
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from damaged_files import ANY, in_time, says
from jax import export
from safetensors.numpy import save

import jaxfed
from jaxfed.api import predictor_file, stages
from jaxfed.api.predictor import Predictor
from jaxfed.data.dataset import Gaps
from jaxfed.data.encoding import RowEncoding
from jaxfed.data.readers.table_encoder import Column, TableEncoder
from jaxfed.data.transforms import Standardization

COLUMNS = (Column("age"), Column("ward", ("a", "b"), (0, 1), 2), Column("blood", entries=2))
ROW = {"age": None, "ward": "b", "blood": [0.5, 2]}


def made():
    encoder = TableEncoder(COLUMNS, ("age", "ward", "blood", "label"), "label")
    scaling = Standardization(np.linspace(0, 1, 6), np.ones(6))
    encoding = RowEncoding(encoder, Gaps((0,), (40.5,)), scaling, is_flat=True)
    weights = {"w": np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3)}
    network = stages.Stage(weights, lambda leaves, x: jax.nn.softmax(x @ leaves[0]), 4)
    return Predictor("fedavg", ("x", "y", "z"), encoding, (network,))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The file, its header and its arrays."""
    file = made().save(tmp_path_factory.mktemp("p") / "p.safetensors")
    with predictor_file.safe_open(file, framework="numpy") as content:
        header = json.loads(json.loads(content.metadata()["jaxfed_predictor"])["header"])
        return file, header, {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118


def rewritten(file, header, tensors):
    text = json.dumps(header)
    entry = {"header": text, "checksum": predictor_file._checksum(text, tensors)}
    file.write_bytes(save(tensors, {"jaxfed_predictor": json.dumps(entry)}))
    return file


def test_what_was_written_is_read(written):
    np.testing.assert_array_equal(jaxfed.load_predictor(written[0])(ROW), made()(ROW))


@pytest.mark.parametrize("kind", ANY)
def test_any_damage_is_noticed(written, tmp_path, kind):
    """Nothing is loaded, unless padding alone has changed."""
    file = tmp_path / "p.safetensors"
    file.write_bytes(written[0].read_bytes())
    ANY[kind](file, np.random.default_rng(0))
    says(lambda: jaxfed.load_predictor(file), r"^load_predictor\('")


VALUES = (None, True, -1, 0, 2**40, 1.5, float("nan"), "", "x", [], [[]], {}, {"a": 1}, ["x"] * 9)


def places(value, path=()):
    """Every place in nested JSON."""
    yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*path, key))


def changed(header, path, value):
    """The header with another value at a place; `del` takes it away."""
    found = parent = copy.deepcopy(header)
    for key in path[:-1]:
        parent = parent[key]
    if value is del_:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return found


del_ = object()
# Texts of every value, and numbers that no part contradicts.
FREE = {*("jaxfed", "jax", "method", "name", "label", "delimiter", "line", "texts", "classes")}
FREE |= {*("version", "codes", "replaced", "other", "gaps")}


def headers(header):
    """(what, header): each place has each value once, is missing, and each object has one more key."""
    for path in places(header):
        for value in (*VALUES, del_) if path else ():
            yield path, value, changed(header, path, value)
        target = header
        for key in path:
            target = target[key]
        if isinstance(target, dict):
            more = copy.deepcopy(header)
            inner = more
            for key in path:
                inner = inner[key]
            inner["more"] = 1
            yield path, "more", more


def check_headers(written, tmp_path, chosen):
    """One line each, or a predictor that predicts or says one line: only what has no wrong value loads."""
    _, header, tensors = written
    for path, value, other in chosen:
        file, said = rewritten(tmp_path / "p", other, tensors), []
        try:
            with in_time():
                predict = jaxfed.load_predictor(file)
                said.append("loaded")
                predict(ROW)
        except jaxfed.UsageError as error:
            said.append(str(error))
        assert "\n" not in "".join(said), (path, value)
        was = functools.reduce(lambda inner, key: inner[key], path, header)
        is_free = FREE & set(path) or value is del_  # has a default
        is_same = other == header or (type(was) is type(value) is bool)
        assert "loaded" not in said or is_free or is_same, (path, value)


def test_hostile_headers(written, tmp_path):
    """Every 25th of them."""
    chosen = list(headers(written[1]))
    assert len(chosen) > 500
    check_headers(written, tmp_path, random.Random(0).sample(chosen, len(chosen) // 25))


@pytest.mark.slow
def test_all_hostile_headers(written, tmp_path):
    check_headers(written, tmp_path, headers(written[1]))


def with_array(name, array):
    return lambda header, tensors: (header, {**tensors, name: array})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            with_array("0.w", np.zeros((6, 4), np.float32)),
            "program of step 0 takes arguments of other shapes",
        ),
        (
            with_array("0.w", np.zeros((6, 3))),
            "program of step 0 takes arguments of other shapes",
        ),
        (with_array("0.more", np.zeros(1)), "do not return probabilities of 3 classes"),
        (with_array("scaling.mean", np.zeros(5)), "mean and scale have different shapes"),
        (with_array("scaling.mean", np.zeros(6, np.float32)), "scaling is not of float64"),
        (
            lambda header, tensors: ({**header, "classes": ["x", "y"]}, tensors),
            "do not return probabilities of 2 classes",
        ),
        (
            lambda header, tensors: ({**header, "steps": []}, tensors),
            "do not return probabilities of 3 classes",
        ),
        (
            lambda header, tensors: (
                {**header, "steps": [{**header["steps"][0], "rows": 5}]},
                tensors,
            ),
            "takes arguments of other shapes",
        ),
        (
            lambda header, tensors: (
                changed(header, ("encoder", "columns", 2, "entries"), 9**9),
                {},
            ),
            "more than 1048576 numbers in a row",
        ),
        (
            lambda header, tensors: (
                changed(header, ("encoder", "columns", 1, "codes"), [0, 7]),
                {},
            ),
            "column 'ward' has impossible codes",
        ),
        (
            lambda header, tensors: (
                {**header, "encoder": {"kind": "arrays", "shape": [-6], "is_bytes": False}},
                tensors,
            ),
            r"an example of shape \[-6\]",
        ),
    ],
)
def test_parts_that_do_not_fit(written, tmp_path, change, message):
    header, tensors = change(copy.deepcopy(written[1]), written[2])
    says(lambda: jaxfed.load_predictor(rewritten(tmp_path / "p", header, tensors)), message)


def test_calls_of_the_host_are_refused(written, tmp_path):
    """A foreign custom call would end the process; the same network is not written either."""
    _, header, tensors = written

    def network(leaves, x):
        return jnp.linalg.qr(x @ leaves[0])[0]

    shapes = [jax.ShapeDtypeStruct((6, 3), jnp.float32)]
    program = export.export(jax.jit(network))(shapes, jax.ShapeDtypeStruct((4, 6), jnp.float32))
    code = np.frombuffer(bytes(program.serialize()), np.uint8)
    file = rewritten(tmp_path / "p", header, {**tensors, "0.program": code})
    says(lambda: jaxfed.load_predictor(file), "its program has the operation custom_call, which")
    weights = {"w": np.ones((6, 3), np.float32)}
    other = Predictor("m", ("x", "y", "z"), made().encoding, (stages.Stage(weights, network, 4),))
    says(lambda: other.save(tmp_path / "q", platforms=("cpu",)), "the operation custom_call")
    assert not (tmp_path / "q").exists()


def test_text_in_place_of_bytecode_is_refused(written, tmp_path):
    """Text of MLIR can write a name in another way."""
    _, header, tensors = written
    program = export.deserialize(bytearray(tensors["0.program"].tobytes()))
    text = dataclasses.replace(program, mlir_module_serialized=program.mlir_module().encode())
    code = np.frombuffer(bytes(text.serialize()), np.uint8)
    file = rewritten(tmp_path / "p", header, {**tensors, "0.program": code})
    says(lambda: jaxfed.load_predictor(file), "not in the form that jax.export writes")


def test_a_program_of_another_platform_is_one_line(tmp_path):
    file = made().save(tmp_path / "p", platforms=("tpu",))
    predict = jaxfed.load_predictor(file)
    says(lambda: predict(ROW), r"^load_predictor\('.*its network does not run here")
