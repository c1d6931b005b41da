"""A partition scheme of one's own: the class in the docstring of `scheme` works as it stands there."""

import dataclasses
import textwrap

import numpy as np
import pytest

from jaxfed.config import check, file
from jaxfed.config.data.dealing import KEYS
from jaxfed.config.data.simulation import Simulation
from jaxfed.data import SCHEMES, Labels, OwnerScheme, schemes

CONFIG = """

from ml_collections import ConfigDict

from jaxfed.config.file import shipped


def get_config(variant=""):
    config = shipped("xclp_digits").get_config("smoke")
    config.federation.num_clients = 4
    config.federation.partition = "two_camps"
    config.two_camps = ConfigDict({"preference": 9.0})
    return config
"""


@pytest.fixture(scope="module")
def own():
    """The code of the docstring, as a namespace."""
    y = np.repeat(np.arange(10), 200)
    code = schemes.__doc__.partition("here in full:\n")[2].partition("\nA config file")[0]
    names = {"y": y, "__name__": "own_scheme"}
    exec(textwrap.dedent(code), names)
    yield names
    SCHEMES.pop("two_camps", None)


def test_every_field_of_jaxfeds_own_is_a_key_of_federation():
    outside = SCHEMES.from_outside()
    ours = [scheme for name, scheme in SCHEMES.items() if name not in outside]
    known = {
        field.name
        for owner in (*ours, Labels)
        if not issubclass(owner, OwnerScheme)  # their fields are columns of the data
        for field in dataclasses.fields(owner)
    }
    assert set(KEYS) == known | {"scheme", "num_clients", "skew", "min_size"}


@pytest.fixture(scope="module")
def config_file(own, tmp_path_factory):
    code = schemes.__doc__.partition("here in full:\n")[2].partition("    partition(y")[0]
    path = tmp_path_factory.mktemp("configs") / "own.py"
    path.write_text(textwrap.dedent(code) + CONFIG)
    del SCHEMES["two_camps"]  # the file registers it
    return str(path)


def test_a_config_names_it_and_sets_its_fields(config_file):
    config = file.load(config_file, ["two_camps.preference=49"])
    check.check(config)
    simulation = Simulation(config)
    counts = simulation.class_counts(simulation.partitioned(0))
    held = sum(counts[role] for role in ("labeled", "unlabeled"))[:, :10]
    shares = held[0, :5].sum() / held[0].sum(), held[1, :5].sum() / held[1].sum()
    np.testing.assert_allclose(shares, (0.98, 0.02), atol=0.02)
