"""XCLP's labels within rounds over a network: the simulation's, by clients that run the protocols."""

from functools import partial
from types import SimpleNamespace

import jax
import network_in_process
import numpy as np
import pytest
from network_in_process import Network, as_numpy

from jaxfed.errors import ProtocolError
from jaxfed.federation.algorithm import Unusable
from jaxfed.federation.communication import Communication
from jaxfed.testing.method_checks import SEED, arranged
from jaxfed.training.round.network import labeled_jointly
from jaxfed.xclp.settings.parameters import Parameters

COHORT = [2, 3, 5]
SECURE = (
    *("xclp.hamming=masked", "xclp.influence=columns", "xclp.row_sums=masked"),
    *("xclp.num_bits=64", "training.labeled_only_rounds=0"),
)


def both(name="fedavg_xclp", settings=(), rounds=2, **which):
    return network_in_process.both(name, COHORT, (*SECURE, *settings), rounds=rounds, **which)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg_xclp", ()),
        pytest.param("fedavg_xclp", ("xclp.row_sums=masked_resilient",), marks=pytest.mark.slow),
        pytest.param("fedavg_xclp_prototypes", (), marks=pytest.mark.slow),
    ],
)
def test_a_network_trains_on_the_labels_of_the_simulation(name, settings):
    state, far, expected, found, there = both(name, settings)
    for one, other in zip(
        *map(jax.tree.leaves, map(as_numpy, (state.model, far.model))), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    for key in ("pseudo_labeled", "pseudo_label_weight", "steps"):
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-5)
    assert expected["pseudo_labeled"] > 0.5
    assert found.keys() == expected.keys()
    for own in there.own.values():  # labels stay, nothing of the session
        assert own["label"]
        assert own["once"] is False
        assert not any(own[name] for name in ("seed", "past", "vectors"))


@pytest.mark.slow
def test_who_leaves_the_labeling_has_left_the_round():
    absent = {("upload", 2): {3}}
    *_, found, there = both(settings=("xclp.row_sums=masked_resilient",), rounds=2, absent=absent)
    asked = {(step, number): clients for step, number, clients in there.steps}
    assert set(asked["upload", 2]) == set(COHORT)
    assert set(asked["update", 2]) == {2, 5}
    assert found["pseudo_labeled"] > 0.5
    assert not there.own[3]["label"]


def test_training_needs_labels_of_the_round():
    config, federation, _ = arranged("fedavg_xclp", settings=SECURE)
    there = Network(config, "fedavg_xclp", federation, COHORT[:2], seed=SEED)
    key = jax.random.key(SEED)
    state = there.algorithm.init(jax.random.fold_in(key, 0), there.federation)
    _, found = there.algorithm.round(state, there.federation.cohort(COHORT[:2]), key)
    assert found["pseudo_labeled"] > 0.5
    side, own = there.clients[2], there.own[2]
    cohort = there.federations[2].cohort([2])
    shape = side.form("update", there.federations[2])
    request = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shape)
    with pytest.raises(ProtocolError, match="training without labels of the round"):
        side.answer("update", own, request._replace(round=np.int32(7)), cohort)
    with pytest.raises(ProtocolError, match="training without labels of the round"):
        side.answer("update", {**own, "label": b""}, request, cohort)
    letter = {"terms": '{"address":0,"seed":1,"round":9}', "letter": b""}
    with pytest.raises(ProtocolError, match="without points of that round"):
        side.answer("join", own, letter, cohort)


@pytest.mark.parametrize("points", [-1, 6])
def test_a_number_of_points_that_no_client_has_is_refused(points):
    def ask(step, asked, form, *, round_number, check):
        check(2, {"points": points})
        return {2: {"points": points}}

    source = SimpleNamespace(
        parameters=Parameters(
            num_classes=2, influence="columns", hamming="masked", row_sums="masked"
        )
    )
    state, cohort = SimpleNamespace(model=(), round=0), SimpleNamespace(client_id=np.array([2]))
    federation = SimpleNamespace(census=SimpleNamespace(examples=(9, 9, 5)))
    labels = partial(labeled_jointly, source, ask, federation)
    with pytest.raises(Unusable, match=f"{points} points"):
        labels(state, cohort, jax.random.key(0), Communication())
