"""What epsilon of labels is called, by where their number is from: an estimate is never called a promise."""

import pytest

from jaxfed.algorithms.fedct.settings import LabelPrivacy
from jaxfed.privacy.composition import approximate
from jaxfed.privacy.label_sensitivity import stability_bound

NOISE = {"release": "xor", "epsilon": 0.5, "stability_delta": 0.05}


@pytest.mark.parametrize(
    ("sensitivity", "settings", "known", "name", "beside"),
    [
        ("rows", {}, 200, "epsilon", {}),
        ("rows", {"rows": 7}, 7, "epsilon", {}),
        ("rows", {"rows": 1500}, 200, "epsilon", {}),
        (
            *("stability", {"stability_rate": 0.01}, stability_bound(200, 0.01, 0.05)),
            *("epsilon_if_stable", {"sensitivity_rows": 9, "stability_failure": 0.15}),
        ),
        ("stability", {"stability_rate": 1.0}, 200, "epsilon_if_stable", None),
        (
            "stability",
            {"stability_rate": 1e-9, "stability_delta": 0.5},
            1,
            "epsilon_if_stable",
            None,
        ),
        ("estimated", {}, 0, "epsilon_estimated", {"sensitivity_rows": 9}),
    ],
)
def test_each_has_its_own_name(sensitivity, settings, known, name, beside):
    privacy = LabelPrivacy(sensitivity=sensitivity, **{**NOISE, **settings})
    assert privacy.known_rows(200) == known
    told = privacy.metrics(3, 9)
    epsilons = {name: 1.5, f"{name}_approximate": approximate(0.5, 3, 1e-5)}
    assert {key: value for key, value in told.items() if "epsilon" in key} == epsilons
    if beside is not None:
        assert told == pytest.approx(epsilons | beside)


def test_without_noise_no_label_is_at_risk():
    assert LabelPrivacy().known_rows(200) == 0
