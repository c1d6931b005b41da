"""What a client lets a server's config say, and what it refuses before anything is built."""

import json

import pytest
from network_deployment import config_of

from jaxfed.flower.client.client_data import ClientSettings
from jaxfed.flower.client.client_step import StepRefused
from jaxfed.flower.client.consent import accepted
from jaxfed.flower.messages import setup
from jaxfed.flower.messages.records import BadMessage

SITE = ClientSettings(number=0, name="north")
SVC = "sklearn.svm.SVC"


def text_of(method="fedavg", *settings, **changes):
    """The text of a server's config; `changes` are made in the text, as a malicious server would."""
    sent = json.loads(setup.config_text(config_of(method, *settings)))
    for key, value in changes.items():
        *sections, leaf = key.split("__")
        place = sent
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return json.dumps(sent)


def agreed(text, method="fedavg", settings=SITE, run=None):
    return accepted(settings, text, method, run or f"{setup.fingerprint(text)}-workdir")


def test_a_config_without_demands_is_accepted():
    config = agreed(text_of())
    assert config.algorithm == "fedavg"
    assert config.training.learning_rate == 0.1


def test_a_run_has_one_config():
    other = setup.fingerprint(text_of("fedavg", "training.learning_rate=0.2"))
    with pytest.raises(BadMessage, match=f"run {other}-x is not of the config"):
        agreed(text_of(), run=f"{other}-x")


def test_a_site_that_has_agreed_to_one_config_takes_part_in_no_other():
    text = text_of()
    only = ClientSettings(number=0, name="north", config=setup.fingerprint(text))
    assert agreed(text, settings=only).algorithm == "fedavg"
    with pytest.raises(StepRefused, match=r"client\.toml has config = "):
        agreed(text_of("fedavg", "training.learning_rate=0.2"), settings=only)


def test_a_method_that_the_config_does_not_have_is_refused():
    with pytest.raises(BadMessage, match="the config has no method"):
        agreed(text_of(), "scaffold")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"training__initial_model": "/etc/passwd"}, "a server sends no path"),
        ({"training__initial_model": "runs/other"}, "a server sends no path"),
        ({"learner__estimator__estimator": "os.system"}, r"client\.toml has estimators = \[\]"),
        ({"learner__estimator__derived_from": "urllib"}, "a server names no package"),
        ({"training__learning_rate": "fast"}, "learning_rate"),
        ({"algorithm": "no_such_method"}, "no"),
    ],
)
def test_what_names_a_file_or_a_class_is_refused(changes, line):
    with pytest.raises((StepRefused, BadMessage), match=line) as refusal:
        agreed(text_of(**changes), changes.get("algorithm", "fedavg"))
    assert "\n" not in str(refusal.value)


def test_a_class_that_the_site_has_named_is_accepted():
    settings = ("learner.name=estimator", f"learner.estimator.estimator={SVC}")
    text = text_of("fedct", "federation.public_size=60", *settings)
    with pytest.raises(StepRefused, match=r"client\.toml has estimators"):
        agreed(text, "fedct")
    site = ClientSettings(number=0, name="north", estimators=(SVC,))
    assert agreed(text, "fedct", site).algorithm == "fedct"


@pytest.mark.parametrize("key", setup.OF_A_MACHINE)
def test_a_sites_own_machine_is_its_own(key):
    with pytest.raises(BadMessage, match=key):
        agreed(text_of(**{f"execution__{key}": 8}))
