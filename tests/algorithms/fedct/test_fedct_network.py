"""A round of FedCT over a network: the simulation's labels, from clients that hold their own data alone."""

import numpy as np
import pytest
from network_in_process import both
from on_demand import on_demand

pytestmark = pytest.mark.usefixtures("as_users_compile")
COHORT = [1, 2, 4]
TREE = ("learner.name=decision_tree",)
MIXED = (
    "learner.names=('decision_tree','network','decision_tree','network','decision_tree','network')",
)
CASES = {
    "trees": TREE,
    "networks": ("learner.name=network",),
    "mixed": MIXED,
    "probabilities": (*TREE, "fedct.consensus=soft_mean"),
    "all answers": (*TREE, "fedct.consensus=staple"),
    "abstentions": (*TREE, "fedct.consensus=qualified_majority", "fedct.threshold=0.6"),
    "random ties": (*TREE, "fedct.ties=random"),
    "masked": (*TREE, "fedct.sums=masked"),
    "double masks": (*TREE, "fedct.sums=masked_resilient"),
    "masked probabilities": (*TREE, "fedct.sums=masked", "fedct.consensus=soft_mean"),
}


def assert_same(state, far):
    assert (state.label >= 0).any()
    for one, other in zip(state[1:], far[1:], strict=True):
        np.testing.assert_array_equal(one, other)


NETWORKS = {"networks", "mixed"}


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
