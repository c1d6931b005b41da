"""What methods say that their messages show: what the round made of the same answers, and no more."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy.special import softmax
from shown_methods import shown
from toy_learner import NUM_CLASSES, NUM_CLIENTS, clients, toy

from jaxfed.algorithms.centralized import centralized
from jaxfed.algorithms.distributed_distillation import distributed_distillation
from jaxfed.algorithms.fedct import fedct
from jaxfed.algorithms.fedmd import fedmd
from jaxfed.algorithms.local_learning import local_learning
from jaxfed.algorithms.pate import pate
from jaxfed.algorithms.per_client_lp import per_client_lp
from jaxfed.algorithms.pooled_lp import pooled_lp
from jaxfed.algorithms.xclp import xclp
from jaxfed.audit.views import ANYBODY, CLIENT, COALITION, NOBODY, SERVER
from jaxfed.data import Partition
from jaxfed.federation.execution import HERE

FEDERATION = clients()
U, COHORT = FEDERATION.public_examples, FEDERATION.cohort()
X = FEDERATION.x[:9]
KEY = jax.random.key(0)
PUBLIC = {"learner": toy(), "public": U, "num_classes": NUM_CLASSES}


GRAPH = {"num_classes": NUM_CLASSES, "execution": HERE}


def networks(**own):
    """Of learners whose scores are softmaxed to other probabilities than they give."""
    return toy()._replace(scores=toy().predict_proba)


def seen_of(algorithm, rounds=1, cohort=COHORT):
    """State after the last round, and its views."""
    state = algorithm.init(KEY, FEDERATION)
    for number in range(1, rounds + 1):
        before, key = state, jax.random.fold_in(KEY, number)
        state, _ = algorithm.round(before, cohort, key)
    return state, algorithm.views(before, state, cohort, key)


def test_labels_are_those_that_clients_agree_on():
    after, (view,) = seen_of(shown(fedct, **PUBLIC, steps=2))
    assert (view.kind, view.client.tolist()) == ("labels", list(range(NUM_CLIENTS)))
    marks = view.answers(U)
    assert set(np.unique(marks)) == {0.0, 1.0}
    np.testing.assert_array_equal(marks.sum(axis=0).argmax(axis=1), after.label)


@pytest.mark.parametrize(
    "sensitivity", [{"rows": 20}, {"sensitivity": "estimated", "neighbors": 3}]
)
@pytest.mark.parametrize("release", ["xor", "randomized_response"])
def test_labels_with_noise_are_those_that_left(release, sensitivity):
    noise = {"release": release, "epsilon": 60.0 if "rows" in sensitivity else 20.0, **sensitivity}
    after, (view,) = seen_of(shown(fedct, **PUBLIC, steps=2, **noise))
    marks = view.answers(U)
    np.testing.assert_array_equal(marks.sum(axis=0).argmax(axis=1), after.label)
    _, (plain,) = seen_of(shown(fedct, **PUBLIC, steps=2))
    assert (marks != plain.answers(U)).any()


def test_under_masks_a_histogram_is_seen():
    after, (view,) = seen_of(shown(fedct, **PUBLIC, steps=2, sums="masked"))
    _, (plain,) = seen_of(shown(fedct, **PUBLIC, steps=2))
    assert (view.kind, view.client.tolist()) == ("counts", [-1])
    np.testing.assert_allclose(view.answers(X)[0], plain.answers(X).mean(axis=0))
    np.testing.assert_array_equal(view.answers(U)[0].argmax(axis=1), after.label)


def test_distillation_shows_probabilities():
    method = {"network": networks, "public": U, "num_classes": NUM_CLASSES, "steps": 2}
    after, (view,) = seen_of(shown(distributed_distillation, **method))
    assert view.kind == "probabilities"
    np.testing.assert_allclose(view.answers(U).mean(axis=0), after.soft, atol=1e-6)
    _, (summed,) = seen_of(shown(distributed_distillation, **method, sums="masked"))
    assert summed.client.tolist() == [-1]
    np.testing.assert_allclose(summed.answers(X)[0], view.answers(X).mean(axis=0), atol=1e-6)


def test_scores_show_their_softmax():
    own = {"transfer_steps": 0, "private_steps": 2, "digest_steps": 1, "revisit_steps": 2}
    method = shown(
        fedmd, network=networks, public=U, public_labels=None, num_classes=NUM_CLASSES, **own
    )
    after, (view,) = seen_of(method)
    scores = networks().scores(after.learner, np.arange(NUM_CLIENTS), X)
    np.testing.assert_allclose(view.answers(X), softmax(scores, axis=-1), atol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_votes_counts_and_the_student(gamma):
    method = shown(pate, **PUBLIC, server_learner=toy(), steps=2, gamma=gamma)
    after, (votes, counts, student) = seen_of(method)
    assert [view.kind for view in (votes, counts, student)] == ["labels", "counts", "probabilities"]
    assert [view.adversary for view in (votes, counts, student)] == [SERVER, SERVER, ANYBODY]
    share = counts.answers(U)[0]
    np.testing.assert_array_equal(share.argmax(axis=1), after.label)
    noise = share - votes.answers(U).mean(axis=0)
    assert np.abs(noise).max() == 0 if gamma == 0 else noise.std() > 0.3
    np.testing.assert_allclose(student.answers(X)[0], method.predict(after, X), atol=1e-6)


def test_points_of_reference():
    _, (own,) = seen_of(shown(local_learning, learner=toy(), num_classes=NUM_CLASSES, steps=2))
    assert own.adversary == NOBODY
    method = shown(centralized, server_learner=toy(), num_classes=NUM_CLASSES, steps=2)
    after, (pooled,) = seen_of(method)
    assert pooled.client.tolist() == [-1]
    np.testing.assert_allclose(pooled.answers(X)[0], method.predict(after, X), atol=1e-6)
    assert shown(per_client_lp, **GRAPH).views is None


GRAPHS = {
    "xclp": (xclp, {"num_bits": 256}),
    "xclp, balanced": (xclp, {"num_bits": 256, "label_matrix": "class_balanced"}),
    "pooled_lp": (pooled_lp, {}),
    "pooled_lp, chosen": (pooled_lp, {"select": ("num_neighbors:1:6",)}),
}
ASKING = sorted(GRAPHS)


def asked_graph(name, **changes):
    make, settings = GRAPHS[name]
    method = shown(make, **GRAPH, num_neighbors=3, **settings, **changes)
    return method, *seen_of(method)


def test_one_more_client_asks_xclp():
    """Its rows of Z are those that it has as a client of the round, and it changes nobody's state."""
    method = shown(xclp, **GRAPH, num_bits=256, num_neighbors=1)
    after, (view, labels, distances) = seen_of(method)
    shares = view.answers(X)
    assert shares.shape == (1, len(X), NUM_CLASSES)
    np.testing.assert_allclose(shares.sum(axis=-1), 1, atol=1e-5)
    # They are members: the nearest of each is its twin, with its label.
    right = shares[0].argmax(axis=1) == FEDERATION.y[:9]
    assert right.all()
    marks = labels.answers(X)
    assert labels.kind == "labels"
    np.testing.assert_array_equal(marks[0], np.eye(NUM_CLASSES)[FEDERATION.y[:9]])
    assert (view.adversary, labels.adversary) == (CLIENT, CLIENT)
    # Together with the server it finds copies at distance 0.
    assert (distances.kind, distances.adversary) == ("distances", COALITION)
    np.testing.assert_array_equal(distances.answers(X), np.zeros((1, len(X), 1)))
    assert (distances.answers(FEDERATION.x[FEDERATION.test]) > 0).all()
    again, _ = method.round(method.init(KEY, FEDERATION), COHORT, jax.random.fold_in(KEY, 1))
    np.testing.assert_array_equal(after.label, again.label)


@pytest.mark.parametrize(
    ("settings", "copies_at_zero"),
    [
        (
            {
                "hamming": "ot",
                "row_sums": "masked",
                "influence": "columns",
                "projection": "group_secret",
            },
            True,
        ),
        ({"hamming": "masked", "row_sums": "masked_resilient", "influence": "columns"}, True),
        ({"bit_epsilon": 1.0}, False),
    ],
)
def test_the_server_and_a_client_have_distances_with_every_protocol(settings, copies_at_zero):
    method = shown(xclp, **GRAPH, num_bits=256, num_neighbors=1, **settings)
    *_, view = method.views(None, None, COHORT, KEY)
    assert view.adversary == COALITION
    assert (view.answers(X) == 0).all() == copies_at_zero
    assert np.median(view.answers(FEDERATION.x[FEDERATION.test])) > 10


def test_one_more_client_of_pooled_data():
    """It gets the labels that it would have as a client of the round."""
    method, _, (_, labels) = asked_graph("pooled_lp")
    x = FEDERATION.x[FEDERATION.test]
    more = np.arange(len(FEDERATION.x), len(FEDERATION.x) + len(x))
    partition = Partition(
        (*FEDERATION.partition.labeled, more[:0]),
        (*FEDERATION.partition.unlabeled, more),
        (*FEDERATION.partition.new, more[:0]),
    )
    joined = replace(
        FEDERATION,
        x=np.concatenate([FEDERATION.x, x]),
        y=np.concatenate([FEDERATION.y, FEDERATION.y[FEDERATION.test]]),
        partition=partition,
    )
    after, _ = method.round(method.init(KEY, joined), joined.cohort(), KEY)
    np.testing.assert_array_equal(labels.answers(x)[0].argmax(axis=1), after.label[-1, : len(x)])


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.slow
def test_the_method_itself_is_a_shadow(name):
    """The labeling of exactly the clients' labels answers as the run; without an example, otherwise."""
    _, _, (scores, labels, *_) = asked_graph(name)
    own = np.concatenate([*FEDERATION.partition.labeled, FEDERATION.test])
    x, y = FEDERATION.x[own], FEDERATION.y[own]
    is_in = np.ones((2, len(own) - len(FEDERATION.test)), bool)
    is_in[1, 0] = False
    same, without = both = scores.shadows(x, y, is_in)
    np.testing.assert_allclose(same, scores.answers(x)[0], rtol=1e-3, atol=1e-4)
    assert without[0, y[0]] < same[0, y[0]] - 0.01
    assert labels.shadows(x, y, is_in) is both  # of the same arrays nothing is solved again
