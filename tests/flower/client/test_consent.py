"""What a client lets a server's config say, and what it refuses before anything is built."""

import json

import pytest
from network_deployment import config_of

from jaxfed.config import base
from jaxfed.flower.client.client_data import ClientSettings
from jaxfed.flower.client.client_run import _check_labels, accepted
from jaxfed.flower.client.client_step import StepRefused
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
    told = setup.Setup(text, method, 3, 10)
    return accepted(settings, told, run or f"{setup.fingerprint(text)}-workdir")


def test_a_run_has_one_config():
    other = setup.fingerprint(text_of("fedavg", "training.learning_rate=0.2"))
    with pytest.raises(BadMessage, match=f"run {other}-x is not of the config"):
        agreed(text_of(), run=f"{other}-x")


def test_a_site_that_has_agreed_to_one_config_takes_part_in_no_other():
    text = text_of()
    only = ClientSettings(number=0, name="north", config=setup.fingerprint(text))
    config = agreed(text, settings=only)
    assert (config.algorithm, config.training.learning_rate) == ("fedavg", 0.1)
    with pytest.raises(StepRefused, match=r"client\.toml has config = "):
        agreed(text_of("fedavg", "training.learning_rate=0.2"), settings=only)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"training__initial_model": "/etc/passwd"}, "a server sends no path"),
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


def test_a_sites_own_machine_is_its_own():
    """Whatever a server says of it has the default."""
    config = agreed(text_of(execution__workers=8, federation={"num_clients": 7}))
    assert (config.execution.workers, config.federation) == (0, base.get_config().federation)


def test_another_version_or_number_of_classes_is_refused():
    told = setup.Setup(text_of(), "fedavg", 3, 10)
    for changed in (told._replace(jaxfed="9.9"), told._replace(jax="0.1")):
        with pytest.raises(StepRefused, match="this client has jaxfed "):
            accepted(SITE, changed, f"{setup.fingerprint(told.config)}-w")
    for number in (1, 10**9):
        with pytest.raises(BadMessage, match=f"there are {number} classes"):
            _check_labels(None, told._replace(num_classes=number))
