"""A round over a network: the simulation's numbers, from parties that hold their own data alone."""

import jax
import network_in_process
import numpy as np
import pytest
from network_in_process import as_numpy
from on_demand import on_demand

COHORT = [2, 3, 5]
# The last rounds are of stage 2. XLA rounds a labeling of one client and of several differently.
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


@pytest.mark.slow
def test_without_any_reply_the_model_stays():
    everybody = {("update", 2): tuple(COHORT)}
    _, before, _, _, _ = both("scaffold", rounds=1)
    _, after, _, _, _ = both("scaffold", rounds=2, absent=everybody)
    jax.tree.map(np.testing.assert_array_equal, as_numpy(before.model), as_numpy(after.model))
