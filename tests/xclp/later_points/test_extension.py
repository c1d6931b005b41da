"""A labeling extended by later points, against a whole labeling of all points and against dense NumPy."""

from functools import partial

import dense_xclp
import numpy as np
import pytest
from dense_xclp import dense_algorithm_1

from jaxfed.errors import UsageError
from jaxfed.federation.execution.settings import Execution
from jaxfed.privacy import randomized_response
from jaxfed.xclp import Parameters, cross_client_label_propagation, propagate_labels
from jaxfed.xclp.later_points import out_of_sample

# Around the same centers whatever the seed.
clustered_clients = partial(dense_xclp.clustered_clients, centers=9)
SETTINGS = {"num_classes": 3, "num_bits": 32, "num_neighbors": 4}  # few bits: many ties

# Old and later points of each client; up to 16 later ones have one program, and up to 64 another.
SHAPES = {
    "a few": ([40, 25, 60], [3, 2, 4]),
    "none of some clients": ([30, 0, 20], [0, 5, 0]),
    "none at all": ([30, 20], [0, 0]),
    "one client": ([50], [4]),
    "more than before": ([5, 3], [20, 30]),
    "fewer before than neighbors": ([1, 1], [9, 4]),
    "newcomers": ([30, 20], [2, 0, 7, 0]),
    "nobody was there": ([0, 0], [20, 10]),
    "fewer clients": ([30, 20, 10], [4]),
}
SWITCHES = [
    {"similarity_power": 3.0},
    {"label_matrix": "class_balanced", "alpha": 0.5},
    {"relative_confidence": True, "influence": "columns"},
    {"client_prior": 1.0},
]


def together(old, later):
    """Each client's later arrays after its old ones."""
    width = max(len(old), len(later))
    shape = (0, *old[0].shape[1:])
    padded = [[*own, *[np.zeros(shape, own[0].dtype)] * (width - len(own))] for own in (old, later)]
    return [np.concatenate(both) for both in zip(*padded, strict=True)]


def check_equal(ours, theirs, scale):
    """Equal within the solver's tolerance; labels and confidences where scores are not as close as that."""
    assert [len(own.labels) for own in ours] == [len(own.labels) for own in theirs]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5 * scale)
        ranked = np.sort(other.scores, axis=1)
        is_clear = ranked[:, -1] - ranked[:, -2] > 1e-4 * scale
        np.testing.assert_array_equal(one.labels[is_clear], other.labels[is_clear])
        np.testing.assert_allclose(one.confidences, other.confidences, atol=2e-3)


def check_extension(sizes, later_sizes, seed=0, labeled=0.3, **switches):
    vectors, labels, _ = clustered_clients(sizes, seed=seed)
    later, later_labels, _ = clustered_clients(later_sizes, seed=seed + 50, labeled=labeled)
    settings = {**SETTINGS, **switches}
    found = propagate_labels(vectors, labels, **settings)
    before = [own.scores.copy() for own in found]
    ours = found.with_later(later, later_labels)
    joint = together(vectors, later), together(labels, later_labels)
    theirs = propagate_labels(*joint, **settings)
    scale = max(own.scores.max(initial=0) for own in theirs) or 1
    check_equal(ours, theirs, scale)
    of_both = [labeling._result.artifacts.points for labeling in (ours, theirs)]
    for name in ("indices", "distances"):
        np.testing.assert_array_equal(*(getattr(own, name) for own in of_both))
    for own, scores in zip(found, before, strict=True):
        np.testing.assert_array_equal(own.scores, scores)  # the labeling stays as it is
    return ours, joint, scale


@pytest.mark.parametrize(("sizes", "later"), SHAPES.values(), ids=SHAPES)
def test_equals_a_labeling_of_all_points_and_the_dense_algorithm(sizes, later):
    ours, joint, scale = check_extension(sizes, later)
    label, confidence, z = dense_algorithm_1(*joint, Parameters(**SETTINGS))
    found = [np.concatenate(part) for part in zip(*ours, strict=True)]
    np.testing.assert_array_equal(found[0], label)
    np.testing.assert_allclose(found[1], confidence, atol=1e-4)
    np.testing.assert_allclose(found[2], z, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_equals_it_with_every_setting(switches):
    check_extension([40, 25, 60], [3, 0, 9], seed=1, **switches)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_equals_it_for_random_numbers_of_points(seed):
    rng = np.random.default_rng(seed)
    sizes, later = (rng.integers(0, limit, rng.integers(1, 5)) for limit in (60, 30))
    check_extension(list(sizes), list(later), seed=seed, labeled=float(rng.choice([0.0, 0.5])))


def test_batch_after_batch_and_labels_of_later_points():
    """Three batches equal one labeling; what comes then is labeled by the graph of all."""
    vectors, labels, _ = clustered_clients([60, 40])
    batches = [clustered_clients([3, 5], seed=seed) for seed in (1, 2, 3)]
    found = propagate_labels(vectors, labels, **SETTINGS)
    joint = vectors, labels
    for batch in batches:
        found = found.with_later(*batch[:2])
        joint = tuple(together(old, own) for old, own in zip(joint, batch[:2], strict=True))
    whole = propagate_labels(*joint, **SETTINGS)
    scale = max(own.scores.max() for own in whole)
    check_equal(found, whole, scale)
    asked, _, _ = clustered_clients([20, 0], seed=4)
    check_equal(found.label(asked), whole.label(asked), scale)


def test_components_that_lose_their_label_lose_their_scores():
    """Later points take the place of all neighbors of the last, so no label reaches it any more."""
    angles = np.array([0, 0, 0, 0, 0, 0.8]), np.array([0.1, *[0.85] * 4])
    old, later = (
        np.stack([np.cos(t), np.sin(t), *[0 * t] * 14], axis=1).astype(np.float32) for t in angles
    )
    found = propagate_labels([old], [np.array([0, *[-1] * 5])], **SETTINGS)
    np.testing.assert_array_equal(found[0].labels, 0)
    (own,) = found.with_later([later])
    np.testing.assert_array_equal(own.labels, [*[0] * 5, -1, 0, *[-1] * 4])
    np.testing.assert_array_equal(own.scores[own.labels < 0], 0)


def test_without_labels_they_are_unlabeled():
    vectors, labels, _ = clustered_clients([30, 20])
    later, _, _ = clustered_clients([3, 2], seed=1)
    found = propagate_labels(vectors, labels, **SETTINGS)
    nothing = [np.full(len(v), -1) for v in later]
    for one, other in zip(found.with_later(later), found.with_later(later, nothing), strict=True):
        np.testing.assert_array_equal(one.scores, other.scores)


def test_the_old_scores_save_steps():
    vectors, labels, _ = clustered_clients([240], labeled=0.1)
    later, _, _ = clustered_clients([9], seed=1)
    p = Parameters(**SETTINGS)
    found = propagate_labels(vectors, labels, **SETTINGS).with_later(later)
    unlabeled = np.full(9, -1)
    whole = cross_client_label_propagation(
        together(vectors, later), together(labels, [unlabeled]), p
    )
    assert found._result.steps < whole.steps
    assert found._result.residual <= max(1.2 * whole.residual, p.tolerance)


def test_chosen_settings_stay():
    """The first labeling, of vectors with noise, chooses another alpha than given, and a sharpness."""
    chosen = {"select": ("alpha:0.5",), "confidence": "calibrated"}
    vectors, labels, _ = clustered_clients([60, 40], labeled=0.5)
    rng = np.random.default_rng(0)
    vectors = [(v + 3 * rng.standard_normal(v.shape)).astype(np.float32) for v in vectors]
    later, later_labels, _ = clustered_clients([6, 4], seed=1)
    found = propagate_labels(vectors, labels, **SETTINGS, **chosen)
    ours = found.with_later(later, later_labels)
    choice = found._result.choice
    assert ours._result.choice is choice
    p = choice.p
    assert p.alpha == 0.5
    joint = together(vectors, later), together(labels, later_labels)
    whole = propagate_labels(*joint, **SETTINGS, alpha=0.5)
    for one, other in zip(ours, whole, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-4)
    assert np.abs(ours[0].confidences - whole[0].confidences).max() > 1e-3  # calibrated


def test_noise_is_not_drawn_twice(monkeypatch):
    """Old codes and labels keep theirs; later codes have that of `label`, later labels have some."""
    noise = {"bit_epsilon": 1.0, "label_epsilon": 0.5}
    vectors, labels, _ = clustered_clients([60, 40])
    later, later_labels, _ = clustered_clients([30, 20], seed=1, labeled=1.0)
    found = propagate_labels(vectors, labels, **SETTINGS, **noise)
    drawn = []

    def watched(name, original):
        def draw(values, *rest):
            drawn.append((name, len(values)))
            return original(values, *rest)

        return draw

    for name in ("randomize_bits", "randomize_labels"):
        monkeypatch.setattr(
            randomized_response, name, watched(name, getattr(randomized_response, name))
        )
    extended = found.with_later(later, later_labels)
    assert drawn == [("randomize_bits", 50), ("randomize_labels", 50)]
    before, after = (labeling._result.artifacts for labeling in (found, extended))
    for j in range(2):
        np.testing.assert_array_equal(after.codes[j][: len(vectors[j])], before.codes[j])
        np.testing.assert_array_equal(
            after.points.labels[j][: len(vectors[j])], before.points.labels[j]
        )
    (asked,) = out_of_sample.later_codes(before, [later[0][:1]])
    np.testing.assert_array_equal(after.codes[0][60], asked[0])
    kept = np.concatenate([after.points.labels[j][len(vectors[j]) :].argmax(1) for j in range(2)])
    assert 0 < np.mean(kept != np.concatenate(later_labels)) < 1


def test_messages_are_counted():
    vectors, labels, _ = clustered_clients([30, 20])
    later, later_labels, _ = clustered_clients([6, 4], seed=1)
    found = propagate_labels(vectors, labels, **SETTINGS)
    before = found._result.communication.metrics()
    after = found.with_later(later, later_labels)._result.communication.metrics()
    assert after["upload"]["codes"] - before["upload"]["codes"] == 10 * 32 // 8
    assert after["download"]["row_sums"] - before["download"]["row_sums"] == 4 * 60 * 3
    assert found._result.communication.metrics() == before


@pytest.mark.parametrize("before", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_over_two_devices_as_on_one(before):
    """Whatever number of devices the labeling is from."""
    vectors, labels, _ = clustered_clients([30, 20])
    later = clustered_clients([6, 4], seed=1)[:2]
    settings = {"execution": Execution(num_devices=before), **SETTINGS}
    one, two = (propagate_labels(vectors, labels, **settings) for _ in range(2))
    one._execution, two._execution = (Execution(num_devices=number) for number in (1, 2))
    one, two = one.with_later(*later), two.with_later(*later)
    check_equal(two, one, max(own.scores.max() for own in one))


def test_slow_convergence_is_told():
    vectors, labels, _ = clustered_clients([50])
    with pytest.warns(RuntimeWarning, match="stopped at relative residual"):
        found = propagate_labels(vectors, labels, **SETTINGS, max_steps=1)
    with pytest.warns(RuntimeWarning, match="stopped at relative residual"):
        found.with_later(clustered_clients([9], seed=1)[0])


GOOD = np.ones((2, 16), np.float32)


def test_clients_compared_in_drawn_pairs_are_not_extended():
    """Unless all are compared: with four others at most, six clients are too many and five are not."""
    vectors, labels, _ = clustered_clients([6] * 6)
    found = propagate_labels(vectors[:5], labels[:5], **SETTINGS, compared_clients=4)
    assert len(found.with_later([GOOD])[0].labels) == 8
    with pytest.raises(UsageError, match=r"compared_clients=4 compares drawn pairs"):
        found.with_later([GOOD] * 6)
