"""What epsilon of labels is called, by where their number is from: an estimate is never called a promise."""

import jax
import numpy as np
import pytest

from jaxfed.algorithms.fedct.client_turn import ClientWork, noisy_marks
from jaxfed.algorithms.fedct.label_noise import agreed_under_noise
from jaxfed.algorithms.fedct.label_privacy import LabelPrivacy
from jaxfed.federation.communication import Communication
from jaxfed.privacy.composition import approximate
from jaxfed.privacy.label_sensitivity import stability_bound
from jaxfed.training.consensus.client_sums import ClientSums
from jaxfed.training.consensus.consensus import CONSENSUS

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


@pytest.mark.parametrize(
    ("release", "unlabeled", "num_bytes"),
    [
        ("randomized_response", (0, 0), 4 + 4),  # 13 labels of 4 values
        ("randomized_response", (0, 1), 4 + 5),  # 13 labels of 5 values at the second client
        ("randomized_response", (13, 2), 5 + 5),
        ("xor", (0, 1), 7 + 7),  # 52 bits, whatever they are
    ],
)
def test_bytes_of_votes_with_rows_that_have_no_label(release, unlabeled, num_bytes):
    marks = [np.eye(4, dtype=bool)[np.arange(13) % 4] for _ in unlabeled]
    for own, number in zip(marks, unlabeled, strict=True):
        own[:number] = False
    sums, shape = ClientSums("plaintext", Communication()), (13, 4)
    privacy = LabelPrivacy(release=release, epsilon=1.0)
    agreed_under_noise(privacy, 0, CONSENSUS["majority"](4), marks, shape, sums, num_clients=2)
    assert sums.communication.upload == {"votes": num_bytes}


def test_without_noise_no_label_is_at_risk():
    assert LabelPrivacy().known_rows(200) == 0


@pytest.mark.parametrize("release", ["xor", "randomized_response"])
def test_clients_of_the_same_labels_have_different_noise(release):
    """With the same noise twice, a difference of two clients' releases would have none."""
    privacy = LabelPrivacy(release=release, epsilon=1.0)
    work = ClientWork(None, "predict", np.zeros((200, 2)), 3, 1, privacy)
    answers, voters = np.zeros((3, 200), np.int32), np.array([0, -1, 4], np.int32)
    first, second = noisy_marks(work, answers, voters, 1, jax.random.key(0))
    assert (first != second).any(axis=1).mean() > 0.1
