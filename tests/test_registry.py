"""Code from outside: a config of nothing but plug-ins runs, and is in every table, report and page."""

import re
import textwrap

import pytest

from docs.generate import reference
from jaxfed.api.run import run
from jaxfed.config import check, file, methods
from jaxfed.config.check import seen_by
from jaxfed.config.overrides import help_text
from jaxfed.data.loading import READERS
from jaxfed.errors import UsageError
from jaxfed.registry import Registry
from jaxfed.reports.report import write_report


def one():
    return 1


def two():
    return 2


def test_names():
    """No own name is taken, and running a file twice is no mistake."""
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
import math

from flax import nnx
from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.fixmatch import fixmatch
from jaxfed.config.file import shipped
from jaxfed.data import load
from jaxfed.data.loading import READERS
from jaxfed.federation.method import method
from jaxfed.models import MODELS, from_flax
from jaxfed.settings import Count, Share
from jaxfed.training.specification import PSEUDO_LABELS
from jaxfed.training.pseudo_labels.pseudo_label import network_labels


@ALGORITHMS.register("plugged_method")
@method(
    title="One-File",
    cites="Somebody, Nobody, Anybody, ICML 2026",
    leaves="all that it has",
    two_views=True,
    weighting="uniform",
)
def plugged_method(*, training, sureness: Share = 0.7):
    \"\"\"FixMatch under another name.

    Args:
        sureness: threshold of a pseudo-label.
    \"\"\"
    return fixmatch(training=training, threshold=sureness)


@PSEUDO_LABELS.register("plugged_labels")
def plugged_labels(parts, *, confidence="softmax"):
    return network_labels(parts.model, parts.embed, confidence=confidence)


@MODELS.register("plugged_network")
def plugged_network(input_shape, num_classes=None, *, width: Count = 8, slope=2.0):
    def network(rngs):
        first = nnx.Linear(math.prod(input_shape), width, rngs=rngs)
        flat = lambda x: x.reshape(len(x), -1)
        return nnx.Sequential(flat, first, nnx.relu, nnx.Linear(width, num_classes, rngs=rngs))

    return from_flax(network, input_shape)


@READERS.register("plugged_data")
def plugged_data(*, root=""):
    return load("digits")


def get_config(variant=""):
    config = shipped("fedavg_xclp").get_config("smoke")
    config.algorithm, config.baselines = "plugged_method", ("labels",)
    config.plugged_method = ConfigDict({"sureness": 0.5})
    config.sure = ConfigDict({"algorithm": "plugged_method", "sureness": 0.9})
    config.labels = ConfigDict({"algorithm": "fedprox", "pseudo_label": "plugged_labels"})
    config.plugged_labels = ConfigDict({"confidence": "softmax"})
    config.plugged_data = ConfigDict({"root": "here"})
    config.dataset.name = "plugged_data"
    config.preprocessing.kind = "images"
    config.training.strong_augmentation = ("translate:1",)
    config.model = ConfigDict({"name": "plugged_network", "width": 4})
    return config
"""


@pytest.fixture(scope="module")
def plug_ins(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "plug_ins.py"
    path.write_text(textwrap.dedent(PLUG_INS))
    config = file.load(str(path))
    check.check(config)
    return str(path), config


def test_a_config_of_nothing_but_plug_ins_runs_and_is_reported(plug_ins, tmp_path):
    small = {"dataset__train_size": 300, "num_repeats": 1, "execution__plots": False}
    keys = {"plugged_method__sureness": 0.6, **small}
    result = run(plug_ins[0], workdir=tmp_path / "run", progress=False, **keys)
    assert result.config.plugged_method.sureness == 0.6
    assert result.summary["algorithms"]["labels"]["pseudo_labeled"]["mean"] > 0
    assert "plugged_data" in READERS
    write_report([tmp_path / "run"], tmp_path / "report")
    report = (tmp_path / "report/report.md").read_text()
    assert re.search(r"^\| .*One-File \|", report, re.MULTILINE)
    page = reference.methods_page(["plugged_method"])
    (row,) = (line for line in page.splitlines() if "`plugged_method`" in line)
    assert "One-File (Somebody, Nobody, Anybody, ICML 2026)" in row
    assert "| a network | clients | all that it has | no |" in row


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("plugged_method.nu=1", r"config\.plugged_method\.nu: unknown key"),
        ("plugged_method.sureness=2", r"config\.plugged_method\.sureness=2\.0: use numbers from 0"),
        ("plugged_labels.confidenc=x", r"plugged_labels\.confidenc: unknown key, did you mean"),
        ("model.width=0", r"config\.model\.width=0: use integers from 1 on"),
        ("training.strong_augmentation=()", "'plugged_method' compares two views of an example"),
    ],
)
def test_their_keys_are_checked(plug_ins, override, message):
    with pytest.raises(UsageError, match=message):
        check.check(file.load(plug_ins[0], [override]))


def test_what_a_method_from_outside_declares_is_known(plug_ins):
    _, config = plug_ins
    needed, seen = methods.needs(config, "sure"), seen_by(config, "sure")
    assert (needed.two_views, needed.weighting, needed.on_network) == (True, "uniform", False)
    assert (seen["method"], seen["plugged_method.sureness"]) == ("plugged_method", 0.9)
    assert "threshold of a pseudo-label" in help_text("plugged_method.sureness", config)
