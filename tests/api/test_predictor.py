"""Predictors: raw rows to the run's own probabilities."""

from pathlib import Path

import jax
import numpy as np
import pandas
import pytest
from PIL import Image

import jaxfed
from jaxfed.api.predictor import Predictor

FEW = {"algorithm": "fedavg", "baselines": (), "num_repeats": 1, "rounds": 3, "training__epochs": 1}
FEW |= {"progress": False, "execution__plots": False}


def write_table(path):
    """A CSV file with numbers, gaps, texts and row numbers; its rows, an array of dicts."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(120):
        a, b, color = rng.random(), 1000 * rng.normal(), rng.choice(["red", "green", "", "blue"])
        label = "yes" if a + 0.3 * (color == "red") > 0.6 else "no"
        lines.append(f"{f'{a:.5f}' if number % 7 else 'NA'},{b:.2f},{color},{number},{label}\n")
    path.write_text("a,b,color,id,label\n" + "".join(lines))
    names = ("a", "b", "color", "id", "label")
    return np.array([dict(zip(names, line.strip().split(","), strict=True)) for line in lines])


def as_in_the_run(result, x, repeat=0):
    """Raw examples of a data set as the run numbers them, and its model's probabilities."""
    federation = result.federation(repeat)
    return x[result._source.numbers], result.model(repeat=repeat)(federation.x)


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
    raw, expected = as_in_the_run(result, rows)
    np.testing.assert_array_equal(predict(raw.tolist()), expected)
    assert predict.classes == ("no", "yes")
    assert predict(rows).dtype == np.float32
    one = predict({"a": None, "b": 3, "color": "red", "label": "yes"})
    assert one.shape == (1, 2)
    assert one.sum() == pytest.approx(1)
    assert "takes a dict" in repr(predict)
    with pytest.raises(jaxfed.UsageError, match="row 0: column 'b' has no value"):
        predict({"a": 1, "b": None, "color": "red"})


def saved(predict, folder):
    """The predictor, from its folder alone."""
    return Predictor.load(predict.save(folder))


def test_a_saved_predictor_needs_no_data(on_a_table, tmp_path):
    result, rows = on_a_table
    raw, expected = as_in_the_run(result, rows)
    data = Path(result.config.dataset.name)
    predict = result.predictor()
    data.rename(data.with_suffix(".away"))
    try:
        again = saved(predict, tmp_path / "model")
        np.testing.assert_array_equal(again(raw.tolist()), expected)
    finally:
        data.with_suffix(".away").rename(data)
    assert repr(again) == repr(predict)
    np.testing.assert_array_equal(saved(again, tmp_path / "copy")(rows), predict(rows))


def _cut(folder):
    file = folder / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")


def _renamed(folder):
    file = folder / "predictor.json"
    file.write_text(file.read_text().replace('"hidden": [', '"hidden": [\n9,'))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, "state.safetensors has changed since it was saved"),
        (_renamed, "'fedavg' has another state in this version of jaxfed"),
        (lambda folder: (folder / "predictor.json").write_text("{}"), "cannot read .*config"),
        (lambda folder: (folder / "state.safetensors").unlink(), "cannot read .*No such file"),
    ],
)
def test_a_damaged_predictor_is_one_line(on_a_table, tmp_path, damage, message):
    folder = on_a_table[0].predictor().save(tmp_path / "model")
    with pytest.raises(jaxfed.UsageError, match=r"^folder='.*: is not empty; give a new one"):
        on_a_table[0].predictor().save(folder)
    damage(folder)
    with pytest.raises(jaxfed.UsageError, match=message) as caught:
        Predictor.load(folder)
    assert "\n" not in str(caught.value)


def digits(tmp_path, **settings):
    return jaxfed.run(
        "fedavg_xclp:smoke",
        workdir=tmp_path / "w",
        dataset__name="digits",
        dataset__train_size=200,
        **{**FEW, **settings},
    )


def check_digits(result):
    x = jaxfed.data.load("digits").x
    raw, expected = as_in_the_run(result, x)
    predict = result.predictor()
    np.testing.assert_array_equal(predict(raw), expected)
    np.testing.assert_array_equal(predict(raw[:, :, :, 0]), expected)
    np.testing.assert_array_equal(predict(raw[3]), expected[3:4])
    if result.config.preprocessing.kind == "federated_features":
        with pytest.raises(jaxfed.UsageError, match="a network computes the features of its rows"):
            predict.save(result.workdir / "model")
    else:
        np.testing.assert_array_equal(saved(predict, result.workdir / "model")(raw), expected)


def test_arrays(tmp_path):
    check_digits(digits(tmp_path))


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
    check_digits(digits(tmp_path, **settings))


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


@pytest.mark.slow
def test_models_of_each_client(tmp_path):
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
    raw, expected = as_in_the_run(result, rows)
    np.testing.assert_array_equal(predict(raw.tolist()), expected)


def run_on(file, workdir, **settings):
    jaxfed.run(
        "fedavg_xclp:smoke",
        workdir=workdir,
        dataset__name=str(file),
        federation__labeled_fraction=0.5,
        model__name="mlp",
        model__hidden=(8,),
        **{**FEW, "rounds": 1, **settings},
    )
    return jaxfed.open(workdir)


@pytest.mark.slow
def test_a_predictor_of_a_parquet_file_is_that_of_the_same_csv_file(tmp_path):
    write_table(tmp_path / "t.csv")
    frame = pandas.read_csv(tmp_path / "t.csv", keep_default_na=False, na_values=["NA"])
    frame.to_parquet(tmp_path / "t.parquet")
    scaled = {"preprocessing__kind": "standardized"}
    of_csv, of_parquet = (
        run_on(tmp_path / name, tmp_path / f"w-{name}", **scaled) for name in ("t.csv", "t.parquet")
    )
    expected = of_csv.predictor()(frame)
    predict = of_parquet.predictor()
    stored = pandas.read_parquet(tmp_path / "t.parquet")
    for rows in (frame, stored, stored.drop(columns="label").to_dict("records")):
        np.testing.assert_array_equal(predict(rows), expected)
    assert predict.classes == ("no", "yes")
    places, in_run = as_in_the_run(of_parquet, np.arange(len(frame)))
    np.testing.assert_array_equal(predict(frame.iloc[places]), in_run)
