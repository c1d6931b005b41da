"""Names for code from outside: no own one is taken, and running a file twice is no mistake."""

import re
import textwrap

import pytest

from docs.generate import reference
from jaxfed.api.run import run
from jaxfed.config import check, file, methods
from jaxfed.config.overrides import help_text
from jaxfed.config.reading import seen_by
from jaxfed.data.loading import READERS
from jaxfed.errors import UsageError
from jaxfed.experiment import sweep as sweep_plan
from jaxfed.registry import Registry
from jaxfed.reports.report import write_report


def one():
    return 1


def two():
    return 2


def test_names():
    registry = Registry("thing", {"own": one}, reserved=("kept",))
    assert registry.register("other")(two) is two
    registry.register("other")(two)
    assert registry.from_outside() == ("other",)
    assert dict(registry) == {"own": one, "other": two}
    for name, message in {
        "own": "one of jaxfed's own",
        "kept": "one of jaxfed's own",
        "no name": "a Python identifier",
    }.items():
        with pytest.raises(UsageError, match=f"thing {name!r}: .*{message}"):
            registry.register(name)
    with pytest.raises(UsageError, match=r"thing 'other': .*two has this name already"):
        registry.register("other")(one)


PLUG_INS = """
from flax import nnx
from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.fedprox import fedprox
from jaxfed.config.file import shipped
from jaxfed.data import load
from jaxfed.data.loading import READERS
from jaxfed.federation.method import method
from jaxfed.models import MODELS, from_flax
from jaxfed.settings import Count
from jaxfed.training.pseudo_labels.label_sources import PSEUDO_LABELS
from jaxfed.training.pseudo_labels.pseudo_label import network_labels


@ALGORITHMS.register("plugged_method")
@method()
def plugged_method(*, training, mu=0.1):
    return fedprox(training=training, mu=mu, pseudo_label="plugged_labels")


@PSEUDO_LABELS.register("plugged_labels")
def plugged_labels(parts, *, confidence="softmax"):
    return network_labels(parts.model, parts.embed, confidence=confidence)


@MODELS.register("plugged_network")
def plugged_network(input_shape, num_classes=None, *, width: Count = 8, slope=2.0):
    (pixels,) = input_shape
    return from_flax(
        lambda rngs: nnx.Sequential(
            nnx.Linear(pixels, width, rngs=rngs), nnx.relu, nnx.Linear(width, num_classes, rngs=rngs)
        ),
        input_shape,
    )


@READERS.register("plugged_data")
def plugged_data(*, root=""):
    return load("breast_cancer")


def get_config(variant=""):
    config = shipped("fedavg_xclp").get_config("smoke")
    config.algorithm, config.baselines = "plugged_method", ("fedavg",)
    config.plugged_method = ConfigDict({"mu": 0.2})
    config.plugged_labels = ConfigDict({"confidence": "softmax"})
    config.plugged_data = ConfigDict({"root": "here"})
    config.dataset.name = "plugged_data"
    config.preprocessing.kind = "standardized"
    config.model = ConfigDict({"name": "plugged_network", "width": 4})
    return config
"""


@pytest.fixture(scope="module")
def plug_ins(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "plug_ins.py"
    path.write_text(textwrap.dedent(PLUG_INS))
    return str(path)


def test_a_config_of_nothing_but_plug_ins_runs(plug_ins):
    alone = {"baselines": (), "execution__plots": False}
    result = run(plug_ins, progress=False, plugged_method__mu=0.5, **alone)
    assert result.config.plugged_method.mu == 0.5
    assert result.summary["algorithms"]["plugged_method"]["pseudo_labeled"]["mean"] == 1
    assert "plugged_data" in READERS


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("plugged_method.nu=1", r"config\.plugged_method\.nu: unknown key"),
        ("plugged_labels.confidenc=x", r"plugged_labels\.confidenc: unknown key, did you mean"),
        ("plugged_labels.confidence=3", None),
        ("plugged_data.root=4", None),
        ("model.widt=3", "unknown key, did you mean 'model.width'"),
        ("model.width=0", r"config\.model\.width=0: use integers from 1 on"),
        ("plugged_method.mu=x", "use numbers"),
        ("model.name=plugged_networ", "'plugged_network'"),
    ],
)
def test_their_keys_are_checked(plug_ins, override, message):
    if message is None:
        check.check(file.load(plug_ins, [override]))
        return
    with pytest.raises(UsageError, match=message):
        check.check(file.load(plug_ins, [override]))


def test_a_sweep_over_plug_ins_runs_their_baseline_once(plug_ins):
    plan = sweep_plan.plan(plug_ins, grid=["plugged_method.mu=0.1,0.5"])
    assert [dict(point.reused) for point in plan.points] == [{}, {"fedavg": plan.points[0].name}]
    labels = sweep_plan.plan(plug_ins, ["baselines=()"], grid=["plugged_labels.confidence=a,b"])
    assert len(labels.points) == 2


def test_a_network_that_does_not_mind_the_classes_is_refused(tmp_path):
    path = tmp_path / "stubborn.py"
    path.write_text(
        PLUG_INS.replace("width, num_classes, rngs", "width, 5, rngs").replace(
            "plugged", "stubborn"
        )
    )
    with pytest.raises(UsageError, match=r"'stubborn_network': has 5 outputs for 2 classes"):
        run(path, progress=False)


ONE_FILE = """
from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.fixmatch import fixmatch
from jaxfed.config.file import shipped
from jaxfed.federation.method import method
from jaxfed.settings import Share


@ALGORITHMS.register("onefile")
@method(
    title="One-File",
    cites="Somebody, Nobody, Anybody, ICML 2026",
    leaves="all that it has",
    two_views=True,
    weighting="uniform",
)
def onefile(*, training, sureness: Share = 0.7):
    \"\"\"FixMatch under another name.

    Args:
        sureness: threshold of a pseudo-label.
    \"\"\"
    return fixmatch(training=training, threshold=sureness)


def get_config(variant=""):
    config = shipped("fedavg_xclp").get_config("smoke")
    config.algorithm, config.baselines = "onefile", ("fedavg",)
    config.onefile = ConfigDict({"sureness": 0.5})
    config.onefile_sure = ConfigDict({"algorithm": "onefile", "sureness": 0.9})
    config.training.strong_augmentation = ("translate:1",)
    return config
"""


@pytest.fixture(scope="module")
def one_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "one_file.py"
    path.write_text(ONE_FILE)
    config = file.load(str(path))
    check.check(config)
    return str(path), config


def test_a_method_of_one_file_is_in_every_table_report_and_page(one_file, tmp_path):
    path, _ = one_file
    small = {"dataset__train_size": 300, "num_repeats": 1, "execution__plots": False}
    run(path, workdir=tmp_path / "run", progress=False, **small)
    write_report([tmp_path / "run"], tmp_path / "report")
    report = (tmp_path / "report/report.md").read_text()
    assert re.search(r"^\| .*One-File \|", report, re.MULTILINE)
    (row,) = (
        line for line in reference.methods_page(["onefile"]).splitlines() if "`onefile`" in line
    )
    assert "One-File (Somebody, Nobody, Anybody, ICML 2026)" in row
    assert "| a network | clients | all that it has | no |" in row


def test_what_a_method_of_one_file_declares_is_checked(one_file):
    path, config = one_file
    needed = methods.needs(config, "onefile_sure")
    assert (needed.two_views, needed.weighting, needed.on_network) == (True, "uniform", False)
    seen = seen_by(config, "onefile_sure")
    assert (seen["method"], seen["onefile.sureness"]) == ("onefile", 0.9)
    for override, wrong in {
        "training.strong_augmentation=()": "'onefile' compares two views of an example",
        "onefile.sureness=2": r"config\.onefile\.sureness=2\.0: use numbers from 0 to 1",
        "federation.labels_at=server": "'onefile' needs labels at the clients",
    }.items():
        with pytest.raises(UsageError, match=wrong):
            check.check(file.load(path, [override]))
    assert "threshold of a pseudo-label" in help_text("onefile.sureness", config)
