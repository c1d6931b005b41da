"""Rounds over a network: the numbers of a simulation, from parties that hold their own data alone."""

import jax
import network_in_process
import numpy as np
import pytest
from network_in_process import Network, as_numpy
from on_demand import on_demand

from jaxfed.errors import ProtocolError
from jaxfed.testing.method_checks import SEED, arranged

COHORT = [2, 3, 5]
# The last rounds are of stage 2. A simulation pads clients to the largest, a client of a network does
# not, and XLA rounds a labeling of another width differently.
EXACT = ("fedavg", "fedprox", "scaffold", "feddyn", "fixmatch", "mixmatch", "fedsiam", "protofssl")
METHODS = (
    *(*EXACT, "fedavg_network", "fedavg_per_client_lp", "feddb", "cbafed", "rscfed"),
    *("proxyfl", "fedloke", "fedirm", "feddure", "twinsight"),
)
CASES = {
    **{name: (name, ()) for name in METHODS},
    "kept optimizers": ("fedavg", ("training.client_optimizer=kept", "training.momentum=0.9")),
    "labels at few clients": ("scaffold", ("federation.num_labeled_clients=4",)),
    "prototypes by the mean": ("protofssl", ("protofssl.prototype_network=mean",)),
}


def both(name, settings=(), rounds=3, **which):
    return network_in_process.both(name, COHORT, settings, rounds=rounds, **which)


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_compile")
@pytest.mark.parametrize("case", CASES)
def test_a_network_gives_the_numbers_of_the_simulation(case):
    name, settings = CASES[case]
    state, far, expected, found, there = both(name, settings)
    a, b = map(
        as_numpy, ((state.model, state.control, state.memory), (far.model, far.control, far.memory))
    )
    is_exact = name in EXACT
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=0 if is_exact else 1e-6)
    assert found.pop("communication") == expected.pop("communication")
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(
            found[key], value, rtol=0 if is_exact and "label" not in key else 1e-5
        )
    for row in map(int, COHORT):  # the state of a client is at the client, and nowhere else
        own = there.own[row]
        rows = jax.tree.map(
            lambda leaf, row=row: np.asarray(leaf)[row : row + 1],
            (state.clients, state.client_optimizers),
        )
        for one, other in zip(
            jax.tree.leaves(rows), jax.tree.leaves((own.client, own.optimizer)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=0, atol=0 if is_exact else 1e-6)
    assert all(leaf.shape[0] == 0 for leaf in jax.tree.leaves(far.clients))


@pytest.mark.parametrize(
    "name",
    on_demand(["scaffold", "fedavg", "protofssl"], at_once=["scaffold"]),
)
def test_a_client_that_does_not_reply_is_as_if_it_had_not_been_drawn(name):
    state, far, expected, found, _ = both(
        name,
        cohorts=lambda number: [2, 5] if number == 2 else COHORT,
        absent={("update", 2): (3,)},
    )
    a, b = map(as_numpy, ((state.model, state.memory), (far.model, far.memory)))
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert found["communication"] == expected["communication"]


SECURE = (
    *("xclp.hamming=masked", "xclp.influence=columns", "xclp.row_sums=masked"),
    *("xclp.num_bits=64", "training.labeled_only_rounds=0"),
)


def labeled(name="fedavg_xclp", settings=(), **which):
    return both(name, (*SECURE, *settings), rounds=2, **which)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg_xclp", ()),
        ("fedavg_xclp", ("xclp.row_sums=masked_resilient",)),
        ("fedavg_xclp_prototypes", ()),
    ],
)
def test_a_network_trains_on_the_labels_of_the_simulation(name, settings):
    state, far, expected, found, there = labeled(name, settings)
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
    *_, found, there = labeled(settings=("xclp.row_sums=masked_resilient",), absent=absent)
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
    letter = {"terms": '{"address":0,"seed":1,"round":9}', "message": b""}
    with pytest.raises(ProtocolError, match="without points of that round"):
        side.answer("join", own, letter, cohort)
