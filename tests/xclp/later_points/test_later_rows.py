"""Labels for later points over protocols: as in the clear, who sees what of them, and who leaves."""

from functools import cache

import numpy as np
import pytest
from secure_labels import digits, disagreement

from jaxfed.federation.communication import Communication
from jaxfed.kernels.devices import padded_length
from jaxfed.secure.primitives import paillier
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.xclp import Parameters, cross_client_label_propagation, label_later
from jaxfed.xclp.later_points.out_of_sample import LaterRows
from jaxfed.xclp.result import PartyArtifacts

NUM_CLIENTS, NUM_CLASSES = 3, 10
SETTINGS = {"num_classes": NUM_CLASSES, "num_bits": 64, "num_neighbors": 3, "alpha": 0.9}
# Where influence is not the subject by columns: transfers of labels take most of a test's time.
MASKED = {"hamming": "masked", "row_sums": "masked", "influence": "columns"}


@pytest.fixture(scope="module", autouse=True)
def one_key():
    """Of the size that is used, drawn once."""
    key = paillier.generate_key(2048)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paillier, "generate_key", lambda bits: key)
        yield


@cache
def data():
    """Points of the graph, labels of half of them, and later points: none of the second client."""
    vectors, labels = digits(NUM_CLIENTS, 24, labeled=0.5)
    later = digits(NUM_CLIENTS, 12, seed=1)[0]
    return vectors, labels, [later[0], later[1][:0], later[2]]


def result_of(gone=None, **switches):
    """A labeling; of `gone` all points are unlabeled."""
    vectors, labels, _ = data()
    labels = [np.full_like(y, -1) if j == gone else y for j, y in enumerate(labels)]
    return cross_client_label_propagation(vectors, labels, Parameters(**SETTINGS | switches))


def later_of(result, later=None, **switches):
    return label_later(
        result, data()[2] if later is None else later, Parameters(**SETTINGS | switches)
    )


@cache
def plain(**switches):
    return later_of(result_of(**switches), **switches)


PROTOCOLS = [
    {"hamming": "masked", "row_sums": "masked_resilient"},
    {"hamming": "ot", "row_sums": "plaintext"},
    {"hamming": "phe", "row_sums": "masked"},
    {"hamming": "plaintext", "row_sums": "masked"},
]
SWITCHES = [
    {"label_matrix": "class_balanced", "relative_confidence": True},
    {"client_prior": 1.0},
    {"num_bits": 32, "select": ("alpha:0.5", "num_bits:64")},
    {"confidence": "calibrated"},
    {
        "label_epsilon": 40.0,
        "bit_epsilon": 40.0,
        "label_matrix": "class_balanced",
    },  # no answer differs
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("influence", ["labels", "columns"])
@pytest.mark.parametrize(
    ("protocols", "switches"),
    [*((own, {}) for own in PROTOCOLS), *((MASKED, own) for own in SWITCHES)],
    ids=str,
)
def test_labels_are_those_in_the_clear(protocols, switches, influence):
    secure = {**protocols, **switches, "influence": influence}
    found = later_of(result_of(**secure), **secure)
    assert disagreement(found, plain(**switches), NUM_CLIENTS) <= 1
    assert sum(np.sum(own.labels >= 0) for own in found) >= 4


def test_settings_matter_for_these_points():
    """Else the tests above would say nothing of them."""
    settings = [{}, *SWITCHES[:-1]]  # the last is to be as without noise
    ours = [[np.concatenate(part) for part in zip(*plain(**own), strict=True)] for own in settings]
    for number, one in enumerate(ours):
        for other in ours[:number]:
            apart = [np.max(np.abs(a - b)) for a, b in zip(one[1:], other[1:], strict=True)]
            assert max(apart) > 1e-3  # confidences or scores


def test_rows_are_weighed_sums_of_the_graphs():
    class Identity:
        num_points, p = 4, None

        def solved(self, y):
            return y, None

    indices = np.array([[0, 1, 2], [3, 0, 1], [2, -1, -1]], np.int32)
    weights = np.array([[1, 2, 4], [8, 16, 0], [32, 0, 0]], np.float32)
    of_unit, _ = LaterRows(Identity(), indices, weights).solved(np.eye(4, dtype=np.float32))
    expected = [[1, 2, 4, 0], [16, 0, 0, 8], [0, 0, 32, 0]]
    np.testing.assert_array_equal(np.asarray(of_unit)[:3], expected)
    assert len(of_unit) == padded_length(3)  # so many numbers of points share their programs


def test_asked_again_and_together_and_apart():
    """The session stays open; a point's label is its own affair, and codes keep their noise."""
    switches = MASKED | {"bit_epsilon": 1.0, "projection": "group_secret"}
    result = result_of(**switches)
    together, again = (later_of(result, **switches) for _ in range(2))
    for ours, theirs in zip(together, again, strict=True):
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-6)
    (apart,) = later_of(result, [data()[2][0][1:]], **switches)
    np.testing.assert_allclose(apart.scores, together[0].scores[1:], atol=1e-6)
    known = result.artifacts.noisy[0]
    assert len(known) == len(data()[2][0])
    assert all(code != noisy.tobytes() for code, noisy in known.items())


# --- who leaves ----------------------------------------------------------------------------------


def without(gone, *, is_neighbor, **switches):
    """In the clear: labels of `gone` do not count, and its points are neighbors or not."""
    result = result_of(gone, **switches)
    if not is_neighbor:
        kept, rows = (
            result.artifacts,
            np.repeat(range(NUM_CLIENTS), [len(v) for v in data()[0]]) != gone,
        )
        result = result._replace(
            artifacts=kept._replace(
                codes=[own for j, own in enumerate(kept.codes) if j != gone],
                scores=kept.scores[rows],
                root_degrees=np.asarray(kept.root_degrees)[: len(rows)][rows],
            )
        )
    return later_of(result)


MOMENTS = [  # action, kind, how many before, whether its points are neighbors, and its labels count
    ("at once", "", 0, False, False),
    ("send", "own", 0, False, False),
    ("send", "shares", 1, False, False),
    ("send", "positions", 0, True, False),
    ("send", "upload", 0, True, False),
    ("receive", "sums", 0, True, True),
]


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize(("action", "kind", "after", "is_neighbor", "counts"), MOMENTS)
@pytest.mark.sample(4)
def test_who_leaves(gone, action, kind, after, is_neighbor, counts):
    result = result_of(**MASKED)
    presence = result.artifacts.session.presence
    if action == "at once":
        presence.lose(gone)
    else:
        presence.lose_when(gone, action, kind, after=after)
    found = later_of(result, **MASKED)
    if kind == "own" and gone == 1:  # which has no later points, and so no distances of them
        assert presence.gone == set()
        return
    assert presence.gone == {gone}
    expected = plain() if counts else without(gone, is_neighbor=is_neighbor)
    left = found.pop(gone)
    assert np.all(left.labels == -1)
    assert not left.confidences.any()
    others = [own for j, own in enumerate(expected) if j != gone]
    assert disagreement(found, others, NUM_CLIENTS) <= 1


@pytest.mark.parametrize("label_matrix", ["plain", "class_balanced"])
@pytest.mark.parametrize("influence", ["labels", "columns"])
def test_who_has_left_has_no_say_where_sums_are_in_the_clear(influence, label_matrix):
    switches = {"hamming": "masked", "influence": influence, "label_matrix": label_matrix}
    result = result_of(**switches)
    result.artifacts.session.presence.lose(0)
    found = later_of(result, **switches)
    assert np.all(found[0].labels == -1)
    expected = without(0, is_neighbor=False, label_matrix=label_matrix)
    assert disagreement(found[1:], expected[1:], NUM_CLIENTS) <= 1


def test_the_outcomes_differ():
    outcomes = [plain(), *(without(0, is_neighbor=flag) for flag in (False, True))]
    scores = [found[2].scores for found in outcomes]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.max(np.abs(scores[one] - scores[other])) > 1e-3


def test_nobody_is_left_or_nobody_asks():
    result = result_of(**MASKED)
    before = result.communication.metrics()
    (found,) = later_of(result, [np.zeros((0, 64), np.float32)], **MASKED)
    assert found.scores.shape == (0, NUM_CLASSES)
    for client in range(NUM_CLIENTS):
        result.artifacts.session.presence.lose(client)
    assert all(np.all(own.labels == -1) for own in later_of(result, **MASKED))
    assert result.communication.metrics() == before


def test_only_a_client_without_points_is_left():
    """Codes in the clear, row sums as a protocol: there is no point that a later one could be near."""
    vectors = [np.ones((4, 8), np.float32), np.zeros((0, 8), np.float32)]
    labels = [np.array([0, 1, 0, 1]), np.zeros(0, int)]
    p = Parameters(num_classes=2, num_bits=64, num_neighbors=2, row_sums="masked")
    result = cross_client_label_propagation(vectors, labels, p)
    result.artifacts.session.presence.lose(0)
    found = label_later(result, [vectors[1], vectors[0][:2]], p)
    assert found[1].labels.tolist() == [-1, -1]


def test_who_leaves_alone_with_what_it_asks_for_leaves_nothing_to_do():
    result, (first, *_) = result_of(**MASKED), data()[2]
    result.artifacts.session.presence.lose_when(0, "send", "shares")
    found, sent = volumes_of(result, later=[first], **MASKED)
    assert np.all(found[0].labels == -1)
    assert not {"positions", "upload", "sums"} & {kind for _, _, kind in sent}


def test_later_systems_that_are_given_up_are_told_of():
    switches = MASKED | {"max_steps": 1}
    with pytest.warns(RuntimeWarning, match="label propagation stopped"):
        result = result_of(**switches)
    with pytest.warns(RuntimeWarning, match="label propagation stopped"):
        later_of(result, **switches)


# --- who sees what -------------------------------------------------------------------------------


def volumes_of(result, later=None, **switches):
    """Payload bytes by (sender, receiver, kind) of labels for later points."""
    volumes = result.artifacts.session.channel.volumes
    before = dict(volumes)
    found = later_of(result, later, **switches)
    sent = {}
    for route, volume in volumes.items():
        num_bytes = volume.payload_bytes - (before[route].payload_bytes if route in before else 0)
        if num_bytes:
            key = route.sender, route.receiver, route.kind.partition("/")[0]
            sent[key] = sent.get(key, 0) + num_bytes
    return found, sent


def seen_by(address, sent):
    return {kind for _, receiver, kind in sent if receiver == address}


@pytest.mark.parametrize(
    ("influence", "of_client"),
    [
        ("labels", {"label_request", "label_payload"}),
        ("columns", {"influence_columns"}),
    ],
)
def test_who_receives_what(influence, of_client):
    switches = MASKED | {"influence": influence}
    result = result_of(**switches)
    assert isinstance(result.artifacts, PartyArtifacts)
    _, sent = volumes_of(result, **switches)
    for client in range(NUM_CLIENTS):
        assert seen_by(client, sent) - {"sums"} == of_client | {"start"}
        assert {sender for sender, receiver, _ in sent if receiver == client} == {SERVER}
    answers = {"label_response", "label_choices"} if influence == "labels" else set()
    hamming = {"own", "points", "shares"}
    assert seen_by(SERVER, sent) == hamming | answers | {"positions", "upload"}


def test_a_client_gets_rows_of_its_own_points_alone_and_all_is_counted():
    _, labels, later = data()
    switches = MASKED | {"influence": "columns", "label_matrix": "class_balanced"}
    result = result_of(**switches)
    before = Communication()
    before.add(result.communication)
    _, sent = volumes_of(result, **switches)
    m = sum(map(len, later))
    for client, (own, y) in enumerate(zip(later, labels, strict=True)):
        assert sent[SERVER, client, "sums"] == 8 * (len(own) + 1) * NUM_CLASSES
        assert sent[client, SERVER, "upload"] == 8 * (m - len(own) + 2) * NUM_CLASSES
        assert sent[SERVER, client, "influence_columns"] == 4 * m * np.sum(y >= 0)
    counted = result.communication.since(before)
    by_kind = {}
    for (_, receiver, kind), num_bytes in sent.items():
        way = "upload" if receiver == SERVER else "download"
        by_kind[way, kind] = by_kind.get((way, kind), 0) + num_bytes
    for (way, kind), num_bytes in by_kind.items():
        assert getattr(counted, way)[kind] == num_bytes


@pytest.mark.parametrize("influence", ["labels", "columns"])
def test_bytes_of_steps_in_the_clear_are_counted(influence):
    _, labels, later = data()
    m, num_labeled = sum(map(len, later)), sum(int(np.sum(y >= 0)) for y in labels)
    hidden = {"hamming": "masked", "influence": influence, "client_prior": 1.0}
    result = result_of(**hidden)
    before = Communication()
    before.add(result.communication)
    later_of(result, **hidden)
    counted = result.communication.since(before)
    assert counted.upload["contributions"] == 4 * NUM_CLIENTS * m * NUM_CLASSES
    assert counted.upload["class_counts"] == 4 * NUM_CLIENTS * NUM_CLASSES
    assert counted.download["row_sums"] == 4 * m * NUM_CLASSES
    assert counted.download["influence_columns"] == 4 * m * num_labeled
    assert not counted.upload.get("codes")
    shown = {"row_sums": "masked"}
    result = result_of(**shown)
    codes = result.communication.upload["codes"]
    later_of(result, **shown)
    assert result.communication.upload["codes"] - codes == m * 64 // 8


def test_the_server_sees_sizes_that_labels_do_not_change():
    """Of all messages; what they say is uniform (influence/test_transfer, row_sums/test_views)."""
    seen, switches = [], MASKED | {"influence": "labels"}
    vectors, labels, _ = data()
    for shift in (0, 3):
        others = [np.where(y >= 0, (y + shift) % NUM_CLASSES, -1) for y in labels]
        p = Parameters(**SETTINGS, **switches)
        result = cross_client_label_propagation(vectors, others, p)
        _, sent = volumes_of(result, **switches)
        seen.append(sent)
    assert seen[0] == seen[1]
