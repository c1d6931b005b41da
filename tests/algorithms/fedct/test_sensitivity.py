"""DP-FedCT by where its sensitivity is from: given, of a stable learner, or estimated from neighbors."""

import itertools
from functools import partial

import jax
import numpy as np
import pytest
from toy_learner import NUM_CLASSES, NUM_PUBLIC, clients, rounds_of, toy

from jaxfed.algorithms.fedct import fedct
from jaxfed.algorithms.fedct.round import estimated_rows
from jaxfed.algorithms.fedct.settings import LabelPrivacy
from jaxfed.federation.cohort import Cohort
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.learners import LEARNERS
from jaxfed.privacy.composition import approximate
from jaxfed.privacy.xor_mechanism import stability_bound
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


@pytest.mark.parametrize("release", ["xor", "randomized_response"])
def test_stability_is_its_bound_as_rows(release):
    bound = stability_bound(NUM_PUBLIC, 0.1, 0.2)
    assert 1 < bound < NUM_PUBLIC
    stable = {"sensitivity": "stability", "stability_rate": 0.1, "stability_delta": 0.2}
    states, told = rounds_of(method(release=release, **stable), FEDERATION, 2)
    given, of_given = rounds_of(method(release=release, rows=bound), FEDERATION, 2)
    assert_equal(states, given)
    assert [metrics["epsilon_if_stable"] for metrics in told] == [40, 80]
    assert [metrics["stability_failure"] for metrics in told] == pytest.approx([0.2, 0.4])
    assert told[0]["sensitivity_rows"] == bound
    assert [metrics["epsilon"] for metrics in of_given] == [40, 80]


def test_the_estimate_is_what_is_used_and_changes_nothing_else():
    states, told = rounds_of(method(**ESTIMATED), FEDERATION, 2)
    rows = int(states[-1].rows)
    assert 1 < rows < NUM_PUBLIC
    given, _ = rounds_of(method(rows=rows), FEDERATION, 2)
    assert_equal(states[1:], given[1:])  # models, too
    assert {metrics["sensitivity_rows"] for metrics in told} == {rows}
    trivial, _ = rounds_of(method(), FEDERATION, 2)
    assert (trivial[-1].label != given[-1].label).any()


@pytest.mark.parametrize(
    "settings", [ESTIMATED, {"sensitivity": "stability", "stability_rate": 0.1}]
)
def test_what_is_not_proven_is_never_called_epsilon(settings):
    _, (told,) = rounds_of(method(**settings), FEDERATION)
    (name,) = {f"epsilon_{part}" for part in ("estimated", "if_stable")} & told.keys()
    of_epsilon = {key for key in told if key.startswith("epsilon")}
    assert of_epsilon == {name, f"{name}_approximate"}
    assert metric_label(name) != metric_label("epsilon")
    if settings is ESTIMATED:
        assert "no promise" in metric_label(name)


def test_the_order_of_clients_and_resuming_are_inert(tmp_path):
    learner = partial(LEARNERS["decision_tree"], num_classes=NUM_CLASSES)
    states, _ = rounds_of(method(learner(), **ESTIMATED), FEDERATION, 2)
    others, _ = rounds_of(
        method(learner(), **ESTIMATED), FEDERATION, change=partial(padded, fill=7.0)
    )
    assert_equal(states[1], others[1])
    Checkpoints(tmp_path).save(1, states[1], {})
    again = method(learner(), **ESTIMATED)
    restored = Checkpoints(tmp_path).latest().state(template=again.init(KEY, FEDERATION))
    after, _ = again.round(restored, FEDERATION.cohort(), jax.random.fold_in(KEY, 1))
    assert_equal(after, states[2])


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


XOR = {"release": "xor", "epsilon": 0.5, "stability_delta": 0.05}


@pytest.mark.parametrize(
    ("sensitivity", "settings", "known", "name", "beside"),
    [
        ("rows", {}, 200, "epsilon", {}),
        ("rows", {"rows": 7}, 7, "epsilon", {}),
        (
            *("stability", {"stability_rate": 0.01}, stability_bound(200, 0.01, 0.05)),
            *("epsilon_if_stable", {"sensitivity_rows": 9, "stability_failure": 0.15}),
        ),
        ("stability", {"stability_rate": 1.0}, 200, "epsilon_if_stable", None),
        ("estimated", {}, 0, "epsilon_estimated", {"sensitivity_rows": 9}),
    ],
)
def test_each_has_its_own_name(sensitivity, settings, known, name, beside):
    privacy = LabelPrivacy(sensitivity=sensitivity, **{**XOR, **settings})
    assert privacy.known_rows(200) == known
    told = privacy.metrics(3, 9)
    epsilons = {name: 1.5, f"{name}_approximate": approximate(0.5, 3, 1e-5)}
    assert {key: value for key, value in told.items() if "epsilon" in key} == epsilons
    if beside is not None:
        assert told == pytest.approx(epsilons | beside)


def test_without_noise_no_label_is_at_risk():
    assert LabelPrivacy().known_rows(200) == 0
