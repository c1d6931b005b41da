"""`jaxfed.open`: a finished run from its workdir alone."""

import json
import shutil

import numpy as np
import pytest
from small_workdirs import make_run

import jaxfed
from jaxfed.config import base
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import entries
from jaxfed.config.stored import GONE

TRAINED = "fedavg_xclp:smoke"
FEW = {"algorithm": "fedavg", "baselines": ("per_client_lp",), "xclp__alpha": 0.9, "rounds": 2}
FEW |= {
    "federation__test": "clients",
    "dataset__train_size": 200,
    "model__hidden": (8,),
    "execution__plots": False,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return jaxfed.run(TRAINED, workdir=tmp_path_factory.mktemp("open") / "w", progress=False, **FEW)


def test_it_is_what_run_returns(trained):
    opened = jaxfed.open(str(trained.workdir))
    assert opened.config == trained.config
    assert opened.config.is_locked
    assert opened.summary == trained.summary
    assert repr(opened) == repr(trained)
    assert opened.methods == ("fedavg", "per_client_lp")
    assert opened.predictions("fedavg").equals(trained.predictions("fedavg"))
    federation = opened.federation()
    x = federation.x[np.concatenate(federation.partition.new)]
    assert np.array_equal(opened.model("fedavg")(x), trained.model("fedavg")(x))


def of_an_older_version(trained, tmp_path):
    """A copy of the workdir without a manifest, whose files may change."""
    place = shutil.copytree(trained.workdir, tmp_path / "w")
    (place / "manifest.json").unlink()
    return place


def test_keys_of_later_versions_have_their_defaults(trained, tmp_path):
    """A config.json without a key, and without one that follows XCLP's."""
    place = of_an_older_version(trained, tmp_path)
    config = json.loads((place / "config.json").read_text())
    del config["execution"], config["evaluate_every"], config["per_client_lp"]["alpha"]
    del config["client_knn"]
    # Keys of earlier versions, at their only values.
    config |= {"fedct": {"ties": "smallest"}, "labeled_share": "ceiling"}
    del config["dataset"]["test_rows"]
    (place / "config.json").write_text(json.dumps(config))
    opened = jaxfed.open(place).config
    assert opened.dataset.test_rows == "shared"  # as all runs were then
    assert dict(flatten(opened.execution)) == dict(flatten(base.get_config().execution))
    assert opened.evaluate_every == 0
    assert opened.per_client_lp.alpha == 0.9
    assert opened.client_knn == trained.config.client_knn
    assert "fedct" not in opened
    assert "labeled_share" not in opened
    assert len(jaxfed.open(place).model("fedavg")(np.zeros((1, *_shape(trained)), np.float32))) == 1


def test_no_key_that_is_gone_is_a_setting():
    """Reading a config.json deletes them, and would delete the setting."""
    assert not GONE.keys() & {entry.key for entry in entries()}


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (
            {"labeled_share": "nearest"},
            "labeled_share: no longer a setting; .* 'ceiling'; leave it out",
        ),
        ({"federation": {"quantity": "lognormal"}}, "quantity: no longer a setting; .* 'default'"),
        ({"fedct": {"consensus": "staple"}}, r"config\.fedct\.consensus='staple': choose one of"),
    ],
)
def test_a_removed_setting_stops_a_model_and_not_its_results(trained, tmp_path, gone, message):
    place = of_an_older_version(trained, tmp_path)
    config = json.loads((place / "config.json").read_text())
    for key, value in gone.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    (place / "config.json").write_text(json.dumps(config))
    opened = jaxfed.open(place)
    assert len(opened.results) == len(trained.results)
    with pytest.raises(jaxfed.UsageError, match=message) as caught:
        opened.model("fedavg")
    assert "\n" not in str(caught.value)


def _shape(result):
    return result.federation().x.shape[1:]


def _unfinished(path):
    make_run(path, finished=False)


def _damaged(path):
    make_run(path)
    (path / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, r"^jaxfed\.open\('w'\): no workdir of jaxfed\.run .* \(/"),
        (lambda path: path.mkdir(), "no workdir of"),
        (_unfinished, "has not finished; the call or command that began it continues it"),
        (_damaged, "cannot read w/config.json"),
    ],
)
def test_mistakes_are_one_line(make, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "w")
    with pytest.raises(jaxfed.UsageError, match=message) as caught:
        jaxfed.open("w")
    assert "\n" not in str(caught.value)


@pytest.fixture
def on_a_file(tmp_path):
    """A finished run on a CSV file, and the file."""
    rng = np.random.default_rng(0)
    table = tmp_path / "t.csv"
    rows = [f"{a:.3f},{b:.3f},{'yn'[int(a > b)]}\n" for a, b in rng.random((80, 2))]
    table.write_text("a,b,label\n" + "".join(rows))
    jaxfed.run(
        "xclp_digits",
        workdir=tmp_path / "w",
        progress=False,
        dataset__name=str(table),
        num_repeats=1,
        algorithm="client_knn",
        baselines=(),
        federation__num_clients=2,
        execution__plots=False,
    )
    return jaxfed.open(tmp_path / "w"), table


def test_data_that_are_gone_or_others_are_one_line(on_a_file):
    result, table = on_a_file
    text = table.read_text()
    table.unlink()
    assert len(result.predictions())  # files of the workdir need no data
    with pytest.raises(jaxfed.UsageError, match=r"t\.csv'?: no such file"):
        result.federation()
    table.write_text(text.replace("0.1", "0.2"))
    with pytest.raises(
        jaxfed.UsageError, match=r"computed on other data: x is .*; bring the data back"
    ):
        result.federation()
    table.write_text(text)
    assert result.federation().num_clients == 2


def test_a_name_that_is_not_registered_is_one_line(trained, tmp_path):
    place = of_an_older_version(trained, tmp_path)
    text = (place / "config.json").read_text()
    (place / "config.json").write_text(text.replace('"name": "mlp"', '"name": "my_network"'))
    opened = jaxfed.open(place)
    assert len(opened.predictions("fedavg"))
    with pytest.raises(jaxfed.UsageError, match=r"config\.model\.name='my_network'"):
        opened.model("fedavg")
