"""Predictors: raw rows to the run's own probabilities, from a file, and as a program without jaxfed."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from PIL import Image
from predicted_rows import FEW, as_in_the_run, write_table
from safetensors import safe_open
from safetensors.numpy import save

import jaxfed
from jaxfed.api import predictor_file


@pytest.fixture(scope="module")
def on_a_table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    rows = write_table(folder / "t.csv")
    result = jaxfed.run(
        "fedavg_xclp:smoke",
        workdir=folder / "w",
        dataset__name=str(folder / "t.csv"),
        preprocessing__kind="standardized",
        federation__labeled_fraction=0.5,
        model__name="mlp",
        model__hidden=(8,),
        **FEW,
    )
    return jaxfed.open(result.workdir), rows


def test_rows_of_a_table_as_they_were_at_training(on_a_table):
    result, rows = on_a_table
    predict = result.predictor()
    raw, expected = as_in_the_run(result, np.array(rows.splitlines()))
    np.testing.assert_array_equal(predict(raw.tolist()), expected)
    assert predict.classes == ("no", "yes")
    assert predict(rows).dtype == np.float32
    one = predict({"a": None, "b": 3, "color": "red", "label": "yes"})
    assert one.shape == (1, 2)
    assert one.sum() == pytest.approx(1)
    assert "takes a dict" in repr(predict)
    for call in (predict, predict.encode):
        with pytest.raises(jaxfed.UsageError, match="row 0: column 'b' has no value"):
            call({"a": 1, "b": None, "color": "red"})


def same_after_a_way_through_a_file(predict, rows, tmp_path):
    """Check a predictor that was saved and loaded, twice, and its exported program."""
    expected = predict(rows)
    file = predict.save(tmp_path / "new" / "model.safetensors")
    loaded = jaxfed.load_predictor(file)
    np.testing.assert_array_equal(loaded(rows), expected)
    assert (loaded.classes, loaded.method, loaded.accepts) == (
        *(predict.classes, predict.method, predict.accepts),
    )
    again = loaded.save(tmp_path / "again.safetensors")
    assert again.read_bytes() == file.read_bytes()
    program = jax.export.deserialize(bytearray(predict.export()))
    x = predict.encode(rows)
    assert program.platforms == ("cpu", "cuda")
    np.testing.assert_array_equal(program.call(x), expected)
    np.testing.assert_array_equal(program.call(x[:1]), expected[:1])
    np.testing.assert_array_equal(
        program.call(np.concatenate([x] * 3))[len(x) :][: len(x)], expected
    )
    other = jax.export.deserialize(bytearray(loaded.export()))
    np.testing.assert_array_equal(other.call(x), expected)


def test_a_table_in_a_file(on_a_table, tmp_path):
    result, rows = on_a_table
    predict = result.predictor()
    same_after_a_way_through_a_file(predict, rows, tmp_path)
    names = ("a", "b", "color=", "color=blue", "color=green", "color=red")
    assert jaxfed.load_predictor(tmp_path / "again.safetensors").inputs == names


SERVER = """
import sys
sys.modules["jaxfed"] = None  # importing it is an ImportError
import jax, numpy as np
program = jax.export.deserialize(bytearray(open("program", "rb").read()))
assert program.in_avals[0].dtype == "float32"
np.save("served.npy", program.call(np.load("x.npy")))
try:
    import jaxfed
except ImportError:
    print("without jaxfed")
"""


@pytest.mark.slow
def test_a_server_without_jaxfed(on_a_table, tmp_path):
    result, rows = on_a_table
    predict = result.predictor()
    predict.save_exported(tmp_path / "program")
    np.save(tmp_path / "x.npy", predict.encode(rows))
    done = subprocess.run(
        [sys.executable, "-c", SERVER], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "without jaxfed\n"), done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "served.npy"), predict(rows), rtol=1e-5)


LOADER = """
import sys
import numpy as np, jaxfed
predict = jaxfed.load_predictor("model.safetensors")
np.save("loaded.npy", predict(open("rows").read()))
"""


@pytest.mark.slow
def test_another_process_without_data_and_run(on_a_table, tmp_path):
    result, rows = on_a_table
    predict = result.predictor()
    predict.save(tmp_path / "model.safetensors")
    (tmp_path / "rows").write_text(rows)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {sys.path[0]!r})\n{LOADER}"],
        *(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "loaded.npy"), predict(rows))


def digits(tmp_path, **settings):
    return jaxfed.run(
        "fedavg_xclp:smoke",
        workdir=tmp_path / "w",
        dataset__name="digits",
        dataset__train_size=200,
        **{**FEW, **settings},
    )


def check_digits(result, tmp_path):
    x = jaxfed.data.load("digits").x
    raw, expected = as_in_the_run(result, x)
    predict = result.predictor()
    np.testing.assert_array_equal(predict(raw), expected)
    same_after_a_way_through_a_file(predict, raw, tmp_path)
    np.testing.assert_array_equal(predict(raw[:, :, :, 0]), expected)
    np.testing.assert_array_equal(predict(raw[3]), expected[3:4])


def test_arrays(tmp_path):
    check_digits(digits(tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"preprocessing__kind": "images", "model__name": "cnn"},
        {"preprocessing__kind": "federated_features", "preprocessing__rounds": 2},
        {"algorithm": "protofssl", "federation__num_clients": 3, "cohort_size": 3},
        {"execution__precision": "bfloat16"},
    ],
)
def test_networks_and_features(settings, tmp_path):
    check_digits(digits(tmp_path, **settings), tmp_path)


def write_images(folder):
    rng = np.random.default_rng(0)
    for number in range(40):
        place = folder / ("cat" if number % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(256, size=(9 + number % 3, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels // (1 + number % 2)).save(place / f"{number:02}.png")
    return folder


def on_images(tmp_path, **settings):
    return jaxfed.run(
        "fedavg_xclp:smoke",
        workdir=tmp_path / "w",
        dataset__name=str(write_images(tmp_path / "f")),
        federation__labeled_fraction=0.5,
        model__name="mlp",
        **FEW,
        **settings,
    )


@pytest.mark.slow
def test_image_files(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    result = on_images(tmp_path, preprocessing__kind="images")
    files = sorted((tmp_path / "f").rglob("*.png"))
    raw, expected = as_in_the_run(result, np.array(files))
    predict = result.predictor()
    np.testing.assert_array_equal(predict(raw.tolist()), expected)
    np.testing.assert_array_equal(predict(raw[0].read_bytes()), expected[:1])
    same_after_a_way_through_a_file(predict, raw.tolist(), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "views",
    [{}, {"preprocessing__components": 6, "preprocessing__views": 1}],
    ids=["whole", "views"],
)
def test_images_through_a_pretrained_network(tmp_path, monkeypatch, views):
    from efficientnet_weights import write_weights

    from jaxfed.models.efficientnet import efficientnet

    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    network = "efficientnet_lite0"
    write_weights(tmp_path / "weights", efficientnet(network).init(jax.random.key(0)))
    result = on_images(
        tmp_path,
        preprocessing__kind="pretrained",
        preprocessing__network=network,
        preprocessing__weights=str(tmp_path / "weights"),
        preprocessing__image_size=32,
        **views,
    )
    files = sorted((tmp_path / "f").rglob("*.png"))
    raw, expected = as_in_the_run(result, np.array(files))
    (tmp_path / "weights").unlink()
    with pytest.raises(jaxfed.UsageError, match="weights"):
        result.predictor()
    write_weights(tmp_path / "weights", efficientnet(network).init(jax.random.key(0)))
    predict = result.predictor()
    np.testing.assert_allclose(predict(raw.tolist()), expected, rtol=1e-4)
    same_after_a_way_through_a_file(predict, raw.tolist(), tmp_path)


@pytest.mark.slow
def test_models_of_each_client_stay_in_memory(on_a_table, tmp_path):
    rows = write_table(tmp_path / "t.csv")
    settings = {**FEW, "algorithm": "local_learning", "rounds": 1, "learner__name": "decision_tree"}
    del settings["training__epochs"]
    result = jaxfed.run(
        "fedct:smoke",
        workdir=tmp_path / "w",
        dataset__name=str(tmp_path / "t.csv"),
        federation__num_clients=2,
        **settings,
    )
    predict = result.predictor()
    raw, expected = as_in_the_run(result, np.array(rows.splitlines()))
    np.testing.assert_array_equal(predict(raw.tolist()), expected)
    for write in (predict.export, lambda: predict.save(tmp_path / "model")):
        with pytest.raises(
            jaxfed.UsageError, match=r"^(save|export): 'local_learning' has a model of"
        ):
            write()
    assert not (tmp_path / "model").exists()


@pytest.fixture
def saved(on_a_table, tmp_path):
    return on_a_table[0].predictor().save(tmp_path / "model.safetensors")


def changed_byte(place):
    def change(file):
        content = bytearray(file.read_bytes())
        content[place] ^= 1
        file.write_bytes(content)

    return change


def rewritten(change):
    """Another header, with a checksum that fits it."""

    def rewrite(file):
        with safe_open(file, framework="numpy") as content:
            header = json.loads(json.loads(content.metadata()["jaxfed_predictor"])["header"])
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        change(header, tensors)
        text = json.dumps(header)
        entry = {"header": text, "checksum": predictor_file._checksum(text, tensors)}
        file.write_bytes(save(tensors, {"jaxfed_predictor": json.dumps(entry)}))

    return rewrite


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), r"^load_predictor\('.*model\.safetensors'\): no such file"),
        (lambda file: file.write_bytes(b""), "cannot read .*SafetensorError"),
        (
            lambda file: file.write_bytes(file.read_bytes()[:-9]),
            "cannot read .*SafetensorError",
        ),
        (changed_byte(50), "cannot read|is damaged"),
        (changed_byte(-1), "is damaged, its checksum is another; save it again"),
        (lambda file: file.write_bytes(save({"x": np.zeros(2)})), "holds no predictor; result"),
        (
            rewritten(lambda header, tensors: header.update(version=2, jaxfed="9.9")),
            "of jaxfed 9.9, which this version .* cannot read",
        ),
        (
            rewritten(lambda header, tensors: tensors.update({"0.program": np.zeros(9, np.uint8)})),
            r"written with jax [\d.]+, which jax [\d.]+ cannot read .*; save it again",
        ),
    ],
)
def test_damaged_files_are_one_line(saved, damage, message):
    damage(saved)
    with pytest.raises(jaxfed.UsageError, match=message) as caught:
        jaxfed.load_predictor(saved)
    assert "\n" not in str(caught.value)


def test_without_flatbuffers(on_a_table, saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    monkeypatch.delitem(sys.modules, "jax._src.export.serialization", raising=False)
    predict = on_a_table[0].predictor()
    for call in (lambda: predict.save("x"), predict.export, lambda: jaxfed.load_predictor(saved)):
        with pytest.raises(jaxfed.UsageError, match=r"^flatbuffers is missing; pip install -r"):
            call()


def test_a_network_that_no_platform_knows(on_a_table):
    with pytest.raises(
        jaxfed.UsageError, match=r"platforms=\('abacus',\): 'abacus' is none; choose"
    ):
        on_a_table[0].predictor().export(platforms=("abacus",))
