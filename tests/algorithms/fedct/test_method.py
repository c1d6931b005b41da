"""FedCT: Algorithm 1 to the label, what a round tells, noise on labels, and messages in bytes."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from toy_learner import NUM_CLASSES, NUM_PUBLIC, clients, nearest, rounds_of, step, toy

from jaxfed.algorithms.fedct import fedct
from jaxfed.algorithms.fedct.round import CoTraining, client_turn, labels_of, packed, unpacked
from jaxfed.algorithms.fedct.settings import LabelPrivacy, Voting
from jaxfed.federation.algorithm import Unusable
from jaxfed.federation.communication import label_bytes
from jaxfed.learners import LEARNERS, mixed
from jaxfed.learners.learner import PublicTargets
from jaxfed.privacy import randomized_response as rr
from jaxfed.privacy import xor_mechanism
from jaxfed.privacy.composition import approximate
from jaxfed.privacy.xor_mechanism import one_hot

FEDERATION = clients()
U = FEDERATION.public_examples
KEY = jax.random.key(0)
MANY = {"release": "xor", "epsilon": 1e4}  # of so much noise that there is hardly any


def method(learner=None, federation=FEDERATION, **settings):
    return fedct(
        learner=learner or toy(),
        public=federation.public_examples,
        num_classes=NUM_CLASSES,
        **{"steps": 2, **settings},
    )


def algorithm_1(b, rounds, threshold=0.0):
    """The paper's Algorithm 1, client by client and step by step; L after each communication."""
    x, y, own = FEDERATION.x, FEDERATION.y, FEDERATION.partition.labeled
    h = [np.zeros((NUM_CLASSES, x.shape[1])) for _ in own]
    public, labelings = None, []
    for t in range(b * rounds):
        sent = []
        for i, points in enumerate(own):
            data_x, data_y = x[points], y[points]
            if public is not None:
                kept = public >= 0
                data_x = np.concatenate([data_x, U[kept]])
                data_y = np.concatenate([data_y, public[kept]])
            h[i] = step(h[i], data_x, data_y, np.ones(len(data_y)))
            if t % b == b - 1:
                sent.append(nearest(h[i], U))
        if sent:
            votes = np.stack([np.bincount(u, minlength=NUM_CLASSES) for u in np.transpose(sent)])
            public = votes.argmax(axis=1)
            public[votes.max(axis=1) < threshold * len(own)] = -1
            labelings.append(public.copy())
    return labelings


@pytest.mark.parametrize("b", [1, 3])
@pytest.mark.parametrize(
    ("settings", "threshold"),
    [({}, 0.0), ({"consensus": "qualified_majority", "threshold": 0.75}, 0.75)],
)
def test_is_algorithm_1_to_the_label(b, settings, threshold):
    states, told = rounds_of(method(steps=b, **settings), FEDERATION, 4)
    before = np.full(NUM_PUBLIC, -1)
    for state, metrics, label in zip(states[1:], told, algorithm_1(b, 4, threshold), strict=True):
        np.testing.assert_array_equal(state.label, label)
        np.testing.assert_array_equal(state.weight, label >= 0)
        assert metrics["consensus_change"] == np.mean(label != before)
        assert metrics["abstained"] == np.mean(label < 0)
        before = label
    assert len({tuple(state.label) for state in states}) > 2  # the case has something to follow
    assert int(states[-1].round) == 4


@pytest.mark.parametrize("sums", ["plaintext", "masked", "masked_resilient"])
def test_what_a_round_tells(sums):
    states, (metrics, *_) = rounds_of(method(sums=sums), FEDERATION, 1)
    assert metrics["clients"] == metrics["voters"] == 4
    assert metrics["failed_clients"] == 0
    assert metrics["fit_accuracy"] == 0.5
    votes = np.stack([nearest(center, U) for center in states[1].learner.center])
    most = [np.bincount(u).max() / 4 for u in votes.T]
    assert metrics["agreement"] == pytest.approx(np.mean(most))
    sent = metrics["communication"]
    label_bytes = NUM_PUBLIC * 2 // 8  # two bits of three classes
    assert sent["download"]["consensus"] == 4 * label_bytes
    if sums == "plaintext":
        assert sent["upload"] == {"votes": 4 * label_bytes}
    else:
        assert sent["upload_bytes"] > 4 * label_bytes
        np.testing.assert_array_equal(
            states[1].label, rounds_of(method(), FEDERATION, 1)[0][1].label
        )
    assert "epsilon" not in metrics


def test_where_all_fail_labels_stay():
    states, told = rounds_of(method(), FEDERATION, 1)
    after, metrics = method(toy(fails=range(4))).round(states[-1], FEDERATION.cohort(), KEY)
    np.testing.assert_array_equal(after.label, states[-1].label)
    assert metrics["consensus_change"] == metrics["voters"] == 0
    assert metrics["communication"]["upload_bytes"] == 0
    assert told[0]["voters"] == 4


def test_clients_of_a_mixture_fail_by_their_own_numbers():
    learner = mixed([toy(), toy(mute=(1,))])  # the second's second client is client 3
    states, told = rounds_of(method(learner), FEDERATION, 1)
    np.testing.assert_array_equal(states[-1].turns, [1, 1, 1, 0])
    assert told[0]["failed_clients"] == 1
    nobody = np.full(2, -1, np.int32)
    assert learner.predict(states[-1].learner, nobody, U).shape == (2, NUM_PUBLIC)


def test_judgement():
    algorithm = method()
    state = rounds_of(algorithm, FEDERATION, 2)[0][-1]
    quality = algorithm.evaluate(state, FEDERATION)
    x, y = FEDERATION.x, FEDERATION.y
    said = np.stack([nearest(center, x[FEDERATION.test]) for center in state.learner.center])
    each = (said == y[FEDERATION.test]).mean(axis=1)
    votes = (said[..., None] == np.arange(NUM_CLASSES)).sum(axis=0)
    trained = [
        np.mean(nearest(center, x[own]) == y[own])
        for center, own in zip(state.learner.center, FEDERATION.partition.labeled, strict=True)
    ]
    expected = {
        "test_accuracy": each.mean(),
        "client_test_accuracy": list(each),
        "client_test_accuracy_deviation": each.std(),
        "majority_test_accuracy": np.mean(votes.argmax(axis=1) == y[FEDERATION.test]),
        "train_accuracy": np.mean(trained),
        "gap_vulnerability": 0.5 + (np.mean(trained) - each.mean()) / 2,
        "consensus_accuracy": np.mean(state.label == y[FEDERATION.public]),
    }
    for name, value in expected.items():
        assert quality[name] == pytest.approx(value), name
    validated = algorithm.validate(state, FEDERATION)
    assert validated.keys() == {
        "validation_accuracy",
        "validation_balanced_accuracy",
        "client_validation_accuracy",
        "client_validation_accuracy_deviation",
        "majority_validation_accuracy",
    }
    table = algorithm.evaluate.predictions(state, FEDERATION)
    np.testing.assert_array_equal(table.label.reshape(4, -1), said)
    np.testing.assert_array_equal(table.client, np.repeat(np.arange(4), 20))
    probabilities = algorithm.predict(state, x[FEDERATION.test])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(probabilities, (0.1 * 4 + 0.7 * votes) / 4, rtol=1e-5)
    labels_alone = method(toy(has_probabilities=False)).predict(state, x[FEDERATION.test])
    np.testing.assert_allclose(labels_alone, votes / 4, rtol=1e-6)


def test_clients_are_judged_on_their_own_unlabeled_points():
    part = FEDERATION.partition
    split = part._replace(
        labeled=tuple(own[2:] for own in part.labeled),
        unlabeled=(*(own[:2] for own in part.labeled[:3]), part.labeled[3][:0]),
    )
    federation = replace(FEDERATION, partition=split)
    algorithm = method()
    state = rounds_of(algorithm, FEDERATION, 1)[0][1]
    told = algorithm.evaluate.of_clients(state, federation)
    right = [
        np.mean(nearest(center, FEDERATION.x[own]) == FEDERATION.y[own])
        for center, own in zip(state.learner.center, split.unlabeled[:3], strict=False)
    ]
    np.testing.assert_allclose(told["client_unlabeled_accuracy"], [*right, np.nan])
    assert algorithm.evaluate.of_clients(state, FEDERATION) == {}


def test_clients_without_a_model_have_no_say():
    algorithm = method()
    states, _ = rounds_of(algorithm, FEDERATION, 1, [[0, 2]])
    one = algorithm.predict(states[0], U)
    assert one.shape == (NUM_PUBLIC, NUM_CLASSES)
    assert (one == 0).all()
    np.testing.assert_allclose(algorithm.predict(states[1], U).sum(axis=1), 1, rtol=1e-5)
    assert algorithm.evaluate(states[0], FEDERATION).keys() == {
        "consensus_accuracy",
        "has_no_model",
    }


@pytest.mark.parametrize("sums", ["plaintext", "masked"])
@pytest.mark.parametrize("release", ["xor", "randomized_response"])
def test_noise_is_the_mechanisms_own(release, sums):
    """The consensus is what the definition makes of labels that each client released by its own key."""
    epsilon, rows = 30.0, NUM_PUBLIC
    settings = {"release": release, "epsilon": epsilon, "rows": rows}
    some = [1, 2, 3]
    states, told = rounds_of(method(**settings, sums=sums), FEDERATION, 1, [some])
    noise_key = jax.random.split(jax.random.fold_in(KEY, 0), 3)[1]
    tally = np.zeros((NUM_PUBLIC, NUM_CLASSES))
    for client in some:
        draw = rr.from_key(jax.random.fold_in(noise_key, client))
        votes = nearest(states[1].learner.center[client], U)
        if release == "xor":
            one = xor_mechanism.release(
                np.eye(NUM_CLASSES, dtype=bool)[votes], epsilon, 2 * rows, draw
            )
        else:
            one = np.eye(NUM_CLASSES)[rr.randomize_labels(votes, draw, NUM_CLASSES, epsilon / rows)]
        tally += one
    counts = tally
    if release == "xor":  # where no class is left above nothing, none is said
        counts = tally - 3 * xor_mechanism.flip_probability(epsilon, 2 * rows, NUM_CLASSES)
    label = np.where(counts.max(axis=1) > 0, counts.argmax(axis=1), -1)
    np.testing.assert_array_equal(states[1].label, label)
    clean = rounds_of(method(), FEDERATION, 1, [some])[0][1].label
    assert (states[1].label != clean).any()  # there is noise
    if sums == "plaintext":
        bits = NUM_CLASSES if release == "xor" else 2
        assert told[0]["communication"]["upload"] == {"votes": 3 * NUM_PUBLIC * bits // 8}


@pytest.mark.parametrize("settings", [{}, MANY])
def test_no_masked_sum_is_of_one_client(settings):
    """It would be that client's labels."""
    states, (told,) = rounds_of(method(sums="masked", **settings), FEDERATION, 1, [[2]])
    assert (states[1].label == -1).all()
    assert told["abstained"] == 1
    assert told["communication"]["upload_bytes"] == 0


@pytest.mark.parametrize("settings", [{}, MANY])
def test_without_a_sum_labels_stay(settings):
    """The second round's one client hears of no other labels, and keeps what it had."""
    states, (_, told) = rounds_of(
        method(sums="masked", **settings), FEDERATION, 2, [[0, 1, 2], [1]]
    )
    assert (states[1].label >= 0).all()
    np.testing.assert_array_equal(states[2].label, states[1].label)
    np.testing.assert_array_equal(states[2].weight, states[1].weight)
    assert told["consensus_change"] == told["abstained"] == 0
    assert told["communication"]["download_bytes"] == 0


def test_a_label_that_is_none_takes_its_bits():
    four = fedct(
        learner=toy(), public=U, num_classes=4, consensus="qualified_majority", threshold=1.0
    )
    told = rounds_of(four, replace(FEDERATION, num_classes=4))[1][0]
    assert 0 < told["abstained"] < 1
    assert told["communication"]["upload"]["votes"] == 4 * NUM_PUBLIC * 2 // 8
    assert told["communication"]["download"]["consensus"] == 4 * NUM_PUBLIC * 3 // 8


def test_epsilon_is_of_the_client_that_took_part_most():
    _, told = rounds_of(method(**MANY), FEDERATION, 3, [[0, 1], [2, 3], [0, 1]])
    assert [metrics["epsilon"] for metrics in told] == [1e4, 1e4, 2e4]
    _, (small,) = rounds_of(method(release="xor", epsilon=0.1), FEDERATION, 1)
    assert small["epsilon_approximate"] == approximate(0.1, 1, 1e-5)


@pytest.mark.parametrize(
    "learner", [toy(), LEARNERS["decision_tree"](num_classes=NUM_CLASSES)], ids=["toy", "tree"]
)
@pytest.mark.parametrize("sums", ["plaintext", "masked"])
def test_a_clients_turn_is_alone_what_it_is_in_a_cohort(learner, sums):
    privacy = LabelPrivacy(release="xor", epsilon=300.0)
    settings = CoTraining(learner, U, NUM_CLASSES, 2, Voting(sums=sums), privacy)
    labels = np.arange(len(U), dtype=np.int32) % NUM_CLASSES
    taught, model = (
        PublicTargets(U, labels, np.ones(len(U), np.float32)),
        learner.init(KEY, FEDERATION),
    )

    def turn_of(cohort):
        draw_of = lambda client: rr.from_key(jax.random.fold_in(KEY, client))  # noqa: E731
        return client_turn(settings, model, cohort, taught, len(U), KEY, draw_of)

    together = turn_of(FEDERATION.cohort())
    assert together.voters.tolist() == [0, 1, 2, 3]
    for client in range(4):
        alone = turn_of(FEDERATION.cohort([client]))
        assert alone.voters.tolist() == [client]
        ours, theirs = alone.sent[client], together.sent[client]
        assert ours[:2] == theirs[:2]
        np.testing.assert_array_equal(ours.summand, theirs.summand)
        assert (ours.content == b"") == (sums == "masked")


RNG = np.random.default_rng(5)
LABELS, BITS, ANSWERS = (
    LabelPrivacy(release=release) for release in ("none", "xor", "randomized_response")
)


@pytest.mark.parametrize("num_public", [0, 1, 7, 33])
@pytest.mark.parametrize("num_classes", [2, 3, 4, 10, 16, 257])
@pytest.mark.parametrize("abstains", [False, True])
@pytest.mark.parametrize("privacy", [LABELS, ANSWERS])
def test_labels(privacy, num_public, num_classes, abstains):
    labels = RNG.integers(0, num_classes, num_public).astype(np.int32)
    if abstains:
        labels[::2] = -1
    missing, shape = bool((labels < 0).any()), (num_public, num_classes)
    content, told = packed(privacy, one_hot(labels, num_classes))
    assert told is missing
    assert len(content) == label_bytes(num_public, num_classes + missing)
    found = unpacked(privacy, content, shape, abstains=missing)
    assert found.dtype == bool
    np.testing.assert_array_equal(labels_of(found), labels)
    for other in (content + b"\0", content[:-1]) if content else (b"\0",):
        with pytest.raises(Unusable, match="bytes of labels"):
            unpacked(privacy, other, shape, abstains=missing)


def test_first_label_is_in_the_highest_bits():
    marks = one_hot(np.array([1, 2, 0, -1]), 4)
    assert packed(LABELS, marks) == (bytes([0b00101000, 0b01000000]), True)


@pytest.mark.parametrize(("num_classes", "abstains"), [(3, False), (10, False), (10, True)])
def test_a_label_that_is_no_class_is_refused(num_classes, abstains):
    values = num_classes + abstains  # the first number that means nothing
    width = (values - 1).bit_length()
    bits = np.zeros((4, width), bool)
    bits[2] = [values >> place & 1 for place in range(width - 1, -1, -1)]
    content = np.packbits(bits).tobytes()
    with pytest.raises(Unusable, match="no class"):
        unpacked(LABELS, content, (4, num_classes), abstains=abstains)


@pytest.mark.parametrize("num_public", [1, 3, 8])
def test_bits_of_the_xor_mechanism(num_public):
    marks = RNG.random((num_public, 3)) < 0.5
    content, abstains = packed(BITS, marks)
    assert (len(content), abstains) == (-(-num_public * 3 // 8), False)
    found = unpacked(BITS, content, marks.shape, abstains=False)
    np.testing.assert_array_equal(found, marks)
    with pytest.raises(Unusable, match="bytes of bits"):
        unpacked(BITS, content + b"\0", marks.shape, abstains=False)
