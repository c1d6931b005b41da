"""Rounds without the clients that left them."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.cohort import Cohort
from jaxfed.flower.deployment.comparison import without


@pytest.mark.parametrize(
    ("state", "left", "there"),
    [
        (SimpleNamespace(round=1), {2: [1]}, [0, -1, 2]),
        (SimpleNamespace(round=0), {2: [1]}, [0, 1, 2]),
        (SimpleNamespace(), {1: [0]}, [-1, 1, 2]),  # a one-shot method's state counts no rounds
    ],
)
def test_clients_that_left_are_not_drawn(state, left, there):
    cohort = Cohort(
        client_id=np.int32([0, 1, 2]),
        x=np.zeros((3, 2, 1), np.float32),
        y=np.zeros((3, 2), np.int32),
        mask=np.ones((3, 2), bool),
    )
    seen = []

    def play(state, cohort, key):
        seen.append(cohort)
        return state, {}

    algorithm = FederatedAlgorithm(init=None, round=play, evaluate=None)
    without(algorithm, left).round(state, cohort, None)
    assert seen[0].client_id.tolist() == there
    assert seen[0].mask.any(1).tolist() == [number >= 0 for number in there]
