"""A round of FedCT over a network: the simulation's labels, from clients that hold their own data alone."""

import dataclasses

import jax
import numpy as np
import pytest
from network_in_process import both
from on_demand import on_demand

from jaxfed.algorithms.fedct import network
from jaxfed.errors import UsageError
from jaxfed.privacy import randomized_response as rr
from jaxfed.testing.method_checks import SEED

COHORT = [1, 2, 4]
TREE = ("learner.name=decision_tree",)
MIXED = (
    "learner.names=('decision_tree','network','decision_tree','network','decision_tree','network')",
)
CASES = {
    "trees": TREE,
    "networks": ("learner.name=network",),
    "mixed": MIXED,
    "abstentions": (*TREE, "fedct.consensus=qualified_majority", "fedct.threshold=0.6"),
    "masked": (*TREE, "fedct.sums=masked"),
    "double masks": (*TREE, "fedct.sums=masked_resilient"),
}


def assert_same(state, far):
    assert (state.label >= 0).any()
    for one, other in zip(state[1:], far[1:], strict=True):
        np.testing.assert_array_equal(one, other)


NETWORKS = {"networks", "mixed"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", on_demand(CASES, at_once=CASES.keys() - NETWORKS))
def test_a_network_gives_the_labels_of_the_simulation(case):
    state, far, expected, found, _ = both("fedct", COHORT, CASES[case], rounds=3)
    assert_same(state, far)
    is_summed = "masked" in case or "masks" in case
    if not is_summed:  # sessions of letters have an exchange to end with
        assert found["communication"] == expected["communication"]
    for name in expected.keys() - {"communication"}:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
    assert found.keys() == expected.keys() | ({"left"} if is_summed else set())
    assert far.learner == ()


def test_sums_among_neighbors():
    """Six clients with four partners each; over two rounds of sparse sessions."""
    settings = ("fedct.sums=masked_resilient", "fedct.mask_partners=4")
    state, far, expected, found, _ = both("fedct", range(6), (*TREE, *settings), rounds=2)
    assert_same(state, far)
    ours, theirs = (told["communication"]["upload"] for told in (found, expected))
    assert ours["secrets"] == theirs["secrets"] == 6 * 4 * 132
    few = ("fedct.sums=masked_resilient", "fedct.mask_partners=2")
    with pytest.raises(UsageError, match=r"fedct.mask_partners=2: too few"):
        both("fedct", range(6), (*TREE, *few), rounds=1)


@pytest.fixture
def noise_of_the_simulation(monkeypatch):
    """Clients draw their noise from the seed, as they do in a simulation; returns the clients that drew."""
    own_turn, drew = network.CoTrainingClient.turn, []

    def turn(self, own, request, cohort):
        _, noise_key, _ = jax.random.split(
            jax.random.fold_in(jax.random.key(SEED), request["round"]), 3
        )
        client = int(cohort.client_id[0])
        draw = rr.from_key(jax.random.fold_in(noise_key, client))

        def counted(rows, num_words):
            drew.append(client)
            return draw(rows, num_words)

        assert self.draw is rr.from_system
        return own_turn(dataclasses.replace(self, draw=counted), own, request, cohort)

    monkeypatch.setattr(network.CoTrainingClient, "turn", turn)
    return drew


@pytest.mark.sample(1)
@pytest.mark.parametrize("sums", ["plaintext", "masked"])
@pytest.mark.parametrize("release", ["xor", "randomized_response"])
def test_noisy_labels_give_the_simulations_consensus(noise_of_the_simulation, release, sums):
    noise = (f"fedct.release={release}", "fedct.epsilon=30", "fedct.rows=3", f"fedct.sums={sums}")
    state, far, expected, found, _ = both("fedct", COHORT, (*TREE, *noise), rounds=2)
    assert_same(state, far)
    assert set(noise_of_the_simulation) == set(COHORT)
    spent = {name: value for name, value in expected.items() if "epsilon" in name}
    assert spent
    assert {name: found[name] for name in spent} == spent
    if sums == "plaintext":
        assert found["communication"] == expected["communication"]


def test_noise_of_clients_comes_from_their_systems():
    """Two runs with the same seed and much noise differ: nobody can draw a client's noise again."""
    noise = (*TREE, "fedct.release=xor", "fedct.epsilon=1")
    runs = [both("fedct", COHORT, noise, rounds=1)[1] for _ in range(2)]
    assert (np.asarray(runs[0].label) != np.asarray(runs[1].label)).any()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            ("fedct.release=xor", "fedct.sensitivity=estimated"),
            r"sensitivity='estimated': does not run on a network; use 'rows' or 'stability'",
        ),
        (
            ("fedct.sums=masked_resilient", "fedct.presence=('1@upload',)"),
            r"presence=1: clients of a network leave by themselves; use \(\)",
        ),
    ],
)
def test_settings_that_do_not_run_on_a_network_are_named(settings, line):
    with pytest.raises(UsageError, match=line):
        both("fedct", COHORT, (*TREE, *settings), rounds=0)
