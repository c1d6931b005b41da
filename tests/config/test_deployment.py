"""The section `deployment`: its rules, and the number of clients that it says."""

import pytest

from jaxfed.config import base
from jaxfed.config.check import check
from jaxfed.config.overrides import with_overrides
from jaxfed.config.reading import seen_by
from jaxfed.config.sections import Deployment, section_of
from jaxfed.errors import UsageError


def changed(*overrides):
    config = with_overrides(base.get_config(), ["dataset.name=digits", *overrides])
    check(config)
    return config


def test_defaults_are_the_fields():
    assert section_of(changed(), "deployment") == Deployment()


@pytest.mark.parametrize(
    ("text", "number"), [("none", 10), ("3", 3), ("('a','b')", 2), ("['north']", 1)]
)
def test_the_number_of_clients(text, number):
    assert section_of(changed(f"deployment.nodes={text}"), "deployment").num_nodes(10) == number


def test_a_number_of_clients_that_only_the_data_have_is_refused():
    with pytest.raises(
        UsageError, match=r"^config\.federation\.num_clients=0: .*; use their number"
    ):
        section_of(changed(), "deployment").num_nodes(0)
    assert section_of(changed("deployment.nodes=3"), "deployment").num_nodes(0) == 3


def test_no_result_depends_on_it():
    assert seen_by(changed("deployment.deadline=5"), "xclp") == seen_by(changed(), "xclp")
