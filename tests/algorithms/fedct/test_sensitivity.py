"""DP-FedCT by where its sensitivity is from: given, of a stable learner, or estimated from neighbors."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest
from toy_learner import NUM_CLASSES, NUM_PUBLIC, clients, toy

from jaxfed.algorithms.fedct import fedct
from jaxfed.algorithms.fedct.round import estimated_rows
from jaxfed.federation.cohort import Cohort
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.learners import LEARNERS
from jaxfed.privacy.label_sensitivity import stability_bound
from jaxfed.reports.names import metric_label
from jaxfed.testing.method_checks import assert_equal, padded

FEDERATION = clients()
U = FEDERATION.public_examples
KEY = jax.random.key(0)
ESTIMATED = {"sensitivity": "estimated", "neighbors": 6}
NOISE = {"release": "xor", "epsilon": 40.0, "steps": 2}


def method(learner=None, **settings):
    return fedct(
        learner=learner or toy(), public=U, num_classes=NUM_CLASSES, **{**NOISE, **settings}
    )


def rounds_of(algorithm, number=1, change=lambda cohort: cohort):
    states, told = [algorithm.init(KEY, FEDERATION)], []
    for index in range(number):
        cohort = change(FEDERATION.cohort())
        state, metrics = algorithm.round(states[-1], cohort, jax.random.fold_in(KEY, index))
        states.append(state)
        told.append(metrics)
    return states, told


def counted(learner):
    """The learner, and the number of its fits so far."""
    fits = []

    def fit(*given):
        fits.append(1)
        return learner.fit(*given)

    return learner._replace(fit=fit), fits


@pytest.mark.parametrize("release", ["xor", "randomized_response"])
def test_stability_is_its_bound_as_rows(release):
    bound = stability_bound(NUM_PUBLIC, 0.1, 0.2)
    assert 1 < bound < NUM_PUBLIC
    stable = {"sensitivity": "stability", "stability_rate": 0.1, "stability_delta": 0.2}
    states, told = rounds_of(method(release=release, **stable), 2)
    given, of_given = rounds_of(method(release=release, rows=bound), 2)
    assert_equal(states, given)
    assert [metrics["epsilon_if_stable"] for metrics in told] == [40, 80]
    assert [metrics["stability_failure"] for metrics in told] == pytest.approx([0.2, 0.4])
    assert told[0]["sensitivity_rows"] == bound
    assert [metrics["epsilon"] for metrics in of_given] == [40, 80]


def test_the_estimate_is_what_is_used_and_changes_nothing_else():
    states, told = rounds_of(method(**ESTIMATED), 2)
    rows = int(states[-1].rows)
    assert 1 < rows < NUM_PUBLIC
    given, _ = rounds_of(method(rows=rows), 2)
    assert_equal(states[1:], given[1:])  # models, too
    assert {metrics["sensitivity_rows"] for metrics in told} == {rows}
    trivial, _ = rounds_of(method(), 2)
    assert (trivial[-1].label != given[-1].label).any()


@pytest.mark.parametrize(
    "settings", [ESTIMATED, {"sensitivity": "stability", "stability_rate": 0.1}]
)
def test_what_is_not_proven_is_never_called_epsilon(settings):
    _, (told,) = rounds_of(method(**settings))
    (name,) = {f"epsilon_{part}" for part in ("estimated", "if_stable")} & told.keys()
    of_epsilon = {key for key in told if key.startswith("epsilon")}
    assert of_epsilon == {name, f"{name}_approximate"}
    assert metric_label(name) != metric_label("epsilon")
    if settings is ESTIMATED:
        assert "no promise" in metric_label(name)


def test_neighbors_are_tried_once_and_resumed_runs_know():
    learner, fits = counted(toy())
    states, _ = rounds_of(method(learner, **ESTIMATED), 3)
    assert len(fits) == 3 + 4 * (6 + 1)
    assert int(states[0].rows) == 0
    assert int(states[1].rows) == int(states[3].rows)


def test_the_order_of_clients_and_resuming_are_inert(tmp_path):
    learner = partial(LEARNERS["decision_tree"], num_classes=NUM_CLASSES)
    states, _ = rounds_of(method(learner(), **ESTIMATED), 2)
    others, _ = rounds_of(method(learner(), **ESTIMATED), 1, partial(padded, fill=7.0))
    assert_equal(states[1], others[1])
    Checkpoints(tmp_path).save(1, states[1], {})
    again = method(learner(), **ESTIMATED)
    restored = Checkpoints(tmp_path).latest().state(template=again.init(KEY, FEDERATION))
    after, _ = again.round(restored, FEDERATION.cohort(), jax.random.fold_in(KEY, 1))
    assert_equal(after, states[2])


def test_more_rows_than_labels_are_all_of_them_and_a_line_says_so(caplog):
    given, _ = rounds_of(method(rows=NUM_PUBLIC + 1))
    assert [each.getMessage() for each in caplog.records] == [
        f"fedct.rows={NUM_PUBLIC + 1}: of {NUM_PUBLIC} public labels no more can change"
    ]
    assert_equal(given, rounds_of(method(rows=NUM_PUBLIC))[0])
    assert len(caplog.records) == 1


def test_where_nobody_answers_nothing_is_estimated_yet():
    states, (told,) = rounds_of(method(toy(fails=range(4)), **ESTIMATED))
    assert int(states[1].rows) == 0
    assert told["epsilon_estimated"] == 0


# One feature; U at 0, 1 and 2, by hand.
LINE = np.arange(3, dtype=np.float32)[:, None]


def nearest_own(cohort, seen=None):
    """Labels of U by the nearest own example, the first of equals."""
    x, y = cohort.x[0][cohort.y[0] >= 0], cohort.y[0][cohort.y[0] >= 0]
    if seen is not None:
        seen.append((x[:, 0].tolist(), y.tolist()))
    return y[np.abs(LINE - x[:, 0]).argmin(axis=1)]


def one_client(x, y):
    x, y = np.array(x, np.float32)[None, :, None], np.array(y, np.int32)[None]
    return Cohort(np.array([5], np.int32), x, y, np.ones_like(y, bool))


def test_every_neighbor_by_hand():
    """Of two examples, in any place, by any point of U with either label: the largest change of all."""
    x, y = [0.2, 1.9], [0, 1]
    labels = nearest_own(one_client(x, y))
    np.testing.assert_array_equal(labels, [0, 0, 1])
    changes = {}
    for place, new, label in itertools.product(range(2), (0.0, 1.0, 2.0), range(2)):
        own, classes = list(x), list(y)
        own[place], classes[place] = new, label
        found = nearest_own(one_client(own, classes))
        changes[tuple(own), tuple(classes)] = int(np.sum(found != labels))
    assert max(changes.values()) == changes[(2.0, 1.9), (0, 1)] == 3  # of one example, all of U
    seen = []
    cohort = one_client([0.2, 9.0, 1.9], [0, -1, 1])  # and one without a label, which stays
    rows = estimated_rows(
        *(partial(nearest_own, seen=seen), cohort, np.array([5]), LINE, 2, KEY), num_neighbors=80
    )
    assert rows == 3
    first, *neighbors = [(tuple(np.float64(x).round(1)), tuple(y)) for x, y in seen]
    assert first == ((0.2, 1.9), (0, 1))
    assert len(neighbors) == 80
    assert set(neighbors) == set(changes)  # all twelve, and none with two examples replaced
    np.testing.assert_array_equal(cohort.x[0, :, 0], np.float32([0.2, 9.0, 1.9]))


@pytest.mark.parametrize(
    ("labels", "client_id", "rows"),
    [
        ([0, -1, -1], [5], 3),  # its only example may be all that it knows
        ([-1, -1, -1], [5], 0),
        ([1, 1, 1], [-1], 0),
    ],
)
def test_clients_with_hardly_any_examples(labels, client_id, rows):
    cohort = one_client([0.2, 0.5, 1.8], labels)
    found = estimated_rows(nearest_own, cohort, np.array(client_id), LINE, 2, KEY, num_neighbors=2)
    assert found == rows


def test_labels_that_no_neighbor_changes_are_one_all_the_same():
    cohort = one_client([0.2, 0.5, 1.8], [1, 1, 1])
    found = estimated_rows(
        lambda own: np.zeros(3, int), cohort, np.array([5]), LINE, 2, KEY, num_neighbors=2
    )
    assert found == 1
