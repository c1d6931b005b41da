"""Sums of updates under masks: the plain mean's numbers, and nothing else at the server."""

import functools
import json

import jax
import network_in_process
import numpy as np
import pytest
from network_in_process import as_numpy
from on_demand import on_demand
from server_owned_sums import assert_noise_of_three, recorded_uploads

from jaxfed.algorithms import ALGORITHMS
from jaxfed.audit.surface import surface_of
from jaxfed.errors import ProtocolError, UsageError
from jaxfed.federation.algorithm import Unusable
from jaxfed.federation.rounds import Played
from jaxfed.secure.primitives.prg import replayable_bytes
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.session.parties import Session
from jaxfed.testing.method_checks import SEED, arranged
from jaxfed.training.round import masked_sums, network
from jaxfed.training.round.client_round import ClientUpdate
from jaxfed.training.round.masked_sums import Summand

MASKED = ("training.sums=masked_resilient",)
COHORT = (1, 2, 3, 5, 6)
XCLP = ("xclp.hamming=masked", "xclp.row_sums=masked", "xclp.influence=columns")
CASES = {
    **{name: (name, ()) for name in ("scaffold", "feddyn", "fedper", "fixmatch", "sage", "fedsem")},
    "statistics": ("fedavg", ("model.name=cnn", "model.norm=batch")),
    "labels by XCLP": ("fedavg_xclp", ()),
    "an adaptive server": ("fedavg", ("training.server_optimizer=adam",)),
}
REFUSED = {
    "dp_fedavg": "needs each client's update",
    "rscfed": "needs each client's update",
    "fedrgd": "needs each client's update",
    "cbafed": "needs each client's update",
    "protofssl": "stores each client's upload",
    "fedproto": "stores each client's upload",
}


@functools.cache
def played(name, settings, cohort=COHORT, rounds=2):
    """State and metrics after some rounds, the last ones of stage 2."""
    _, federation, algorithm = arranged(name, settings=settings)
    key = jax.random.key(SEED)
    state, metrics = algorithm.init(jax.random.fold_in(key, 0), federation), {}
    for number in range(1, rounds + 1):
        own_key = jax.random.fold_in(key, number)
        state, metrics = algorithm.round(state, federation.cohort(list(cohort)), own_key)
    return state, metrics


def assert_same(one, other, tolerance=1e-6):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", on_demand(list(CASES), at_once=["scaffold", "statistics"]))
def test_masked_sums_give_the_plain_mean(case):
    name, settings = CASES[case]
    (plain, expected), (masked, found) = (
        played(name, (*settings, *sums), rounds=3) for sums in ((), MASKED)
    )
    # Adam divides by the root of a second moment, and with it differences of rounding.
    within = 1e-3 if "adaptive" in case else 1e-6
    assert_same(plain.model, masked.model, within)
    assert_same((plain.control, plain.optimizer), (masked.control, masked.optimizer), within)
    assert_same(plain.clients, masked.clients)
    assert found.keys() == expected.keys()
    for metric in expected.keys() - {"communication"}:
        np.testing.assert_allclose(found[metric], expected[metric], rtol=1e-5, atol=1e-6)


def test_bytes_are_those_of_the_session_and_no_model_goes_up():
    _, metrics = played("scaffold", MASKED, rounds=3)
    sent = metrics["communication"]
    state, _ = played("scaffold", MASKED, rounds=3)
    numbers = sum(leaf.size for leaf in jax.tree.leaves((state.model, state.control)))
    assert sent["upload"]["parameters"] == sent["upload"]["control"] == 0
    others = 6  # weight, loss, local steps, their weight, trains, labeled examples
    assert sent["upload"]["upload"] == len(COHORT) * 8 * (numbers + others)


@pytest.mark.parametrize("method", on_demand(list(REFUSED), at_once=["dp_fedavg", "fedproto"]))
def test_methods_that_need_each_update_are_refused(method):
    with pytest.raises(
        UsageError, match=rf"sums='masked_resilient': .*{REFUSED[method]}.*plaintext"
    ):
        arranged(method, settings=MASKED)


def test_who_leaves_before_its_upload_is_not_in_the_sum_and_who_leaves_after_is():
    before = played("fedavg", (*MASKED, "training.presence=3@upload"))
    after = played("fedavg", (*MASKED, "training.presence=3@survivors"))
    assert_same(before[0].model, played("fedavg", (), (1, 2, 5, 6))[0].model)
    assert_same(after[0].model, played("fedavg", ())[0].model)
    assert (before[1]["clients"], after[1]["clients"]) == (4, 5)
    sent = [own["communication"]["download"]["parameters"] for _, own in (before, after)]
    assert sent[0] / 4 == sent[1] / 5  # who is not in the sum has left the round


def test_without_a_second_client_nothing_is_sent_and_the_model_stays():
    _, federation, algorithm = arranged("fedavg", settings=MASKED)
    state = algorithm.init(jax.random.key(0), federation)
    after, metrics = algorithm.round(state, federation.cohort([2]), jax.random.key(1))
    assert_same(after.model, state.model, 0)
    assert metrics["communication"]["upload_bytes"] == 0


def some_update(rng):
    """A client's update of three numbers and one, with float32 leaves."""
    leaf = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    metrics = {"train_loss": leaf()}
    return ClientUpdate({"w": leaf(3), "b": leaf()}, np.float32(rng.integers(1, 9)), metrics)


def test_the_mean_is_exact_to_fixed_point():
    """In each number the sum is within K 2^-41 of the exact one, whatever the clients' weights."""
    rng = np.random.default_rng(0)
    updates = [some_update(rng) for _ in range(5)]
    own = [masked_sums.summand_of(each, True, {}, 0) for each in updates]
    vectors = {k: masked_sums.vector_of(each) for k, each in enumerate(own)}
    total = masked_sums.sum_in(Session(5), vectors, len(vectors[0]))
    assert np.abs(total - sum(vectors.values())).max() <= 5 * 2.0**-41
    summed = masked_sums.summand_from(total, own[0])
    weights = np.array([float(each.weight) for each in updates])
    exact = sum(w * each.delta["w"].astype(float) for w, each in zip(weights, updates, strict=True))
    bound = 2 * 5 * 2.0**-41 / weights.sum()
    assert np.abs(summed.weighted["w"] / summed.weight - exact / weights.sum()).max() <= bound


def test_the_view_of_the_server_depends_on_the_sum_alone(monkeypatch):
    """Under the same masks two cohorts with one sum differ by their split alone, which other masks undo.

    Masks of the pairs are uniform, so the view of one cohort is as likely for the other.
    """
    rng = np.random.default_rng(3)
    moved = rng.normal(size=(4000, 1))
    one = [rng.normal(size=moved.shape) for _ in range(3)]
    other = [one[0] + moved, one[1] - moved, one[2]]
    views = []
    for own in (one, other):
        session = Session(3, random_bytes=replayable_bytes(bytes(32)))
        views.append(recorded_uploads(session, monkeypatch))
        total = masked_sums.sum_in(session, dict(enumerate(own)), len(moved))
        np.testing.assert_allclose(total, sum(one), atol=3 * 2.0**-41)
    encode = FixedPoint(3).encode
    for client in range(3):
        split = encode(other[client]) - encode(one[client])
        np.testing.assert_array_equal(views[1][client] - views[0][client], split[:, 0])
    assert_noise_of_three(views[0])


def test_the_audit_has_no_message_with_a_clients_model():
    for sums, messages in (((), {"a client's model", "the mean"}), (MASKED, {"the mean"})):
        _, federation, algorithm = arranged("fedavg", settings=sums)
        before = algorithm.init(jax.random.key(0), federation)
        cohort, key = federation.cohort(list(COHORT)), jax.random.key(1)
        after, _ = algorithm.round(before, cohort, key)
        views_of = surface_of(ALGORITHMS["fedavg"], {}, algorithm)
        views = views_of(Played(1, before, after, {}, cohort, key))
        assert {view.message for view in views} == messages


def test_a_client_with_nothing_to_train_on_has_no_metrics_in_the_sum():
    rng = np.random.default_rng(1)
    idle, busy = some_update(rng), some_update(rng)
    idle = idle._replace(weight=np.float32(0))
    terms = [masked_sums.summand_of(idle, False, {}, 0), masked_sums.summand_of(busy, True, {}, 0)]
    total = jax.tree.map(np.add, *terms)
    update, trains, metrics = masked_sums.mean_of(Summand(*total))
    assert_same(jax.tree.map(lambda leaf: leaf[0], update.delta), busy.delta, 1e-7)
    assert float(update.metrics["train_loss"][0]) == pytest.approx(
        float(busy.metrics["train_loss"])
    )
    assert trains.tolist() == [True]
    assert int(metrics["clients"]) == 1


NETWORK = {
    "scaffold": ("scaffold", ()),
    "labels by XCLP": ("fedavg_xclp", XCLP),
    "labels by the network": ("fedavg_network", ()),
}


@pytest.mark.parametrize("case", on_demand(list(NETWORK), at_once=["scaffold"]))
def test_a_network_gives_the_simulations_bits(case):
    name, settings = NETWORK[case]
    cohort = list(range(8)) if name == "fedavg_xclp" else list(COHORT)
    state, far, expected, found, there = network_in_process.both(
        name, cohort, (*settings, *MASKED), rounds=3
    )
    is_exact = case == "scaffold"  # labelings of one client round differently
    assert_same(as_numpy(state.model), as_numpy(far.model), 0 if is_exact else 1e-6)
    assert_same(state.control, far.control, 0)
    if is_exact:  # clients that label by themselves have metrics of it in the sum
        assert found["communication"] == expected["communication"]
    assert found.keys() == expected.keys()
    assert {step for step, *_ in there.steps} >= {"update", "join", "upload", "reveal", "end"}


@pytest.mark.parametrize("stage", ["upload", "survivors"])
def test_who_leaves_a_sum_of_the_network_leaves_as_in_the_simulation(stage):
    step = {"upload": "upload", "survivors": "reveal"}[stage]
    _, far, _, found, _ = network_in_process.both(
        "fedavg", list(COHORT), MASKED, rounds=1, absent={(step, 1): (3,)}
    )
    expected, metrics = played("fedavg", (*MASKED, f"training.presence=3@{stage}"), rounds=1)
    assert_same(as_numpy(far.model), as_numpy(expected.model), 0)
    assert found["clients"] == metrics["clients"]


def test_a_letter_of_another_round_than_the_updates_is_refused():
    """Its masks would be of one round, its numbers of another."""
    client = network.SummingClient(inner=None).side
    own = network.NO_SUMMAND | {"summand": np.ones(2).tobytes(), "round": 3}
    request = {"terms": json.dumps({"address": 0, "round": 2}), "message": b""}
    with pytest.raises(ProtocolError, match="of round 2 without an update of that round"):
        client.answer("join", own, request, None)


def test_a_client_with_another_number_of_numbers_is_unusable(monkeypatch):
    answer = network_in_process.Network.answer

    def shorter(self, client, step, message, form):
        reply = answer(self, client, step, message, form)
        return {"numbers": 1} if (client, step) == (3, "update") else reply

    monkeypatch.setattr(network_in_process.Network, "answer", shorter)
    with pytest.raises(Unusable, match="1 numbers in place of"):
        network_in_process.both("fedavg", list(COHORT), MASKED, rounds=1)


def test_a_client_of_a_network_sends_no_update_in_the_clear(monkeypatch):
    """Its reply to an "update" is a count; no letter has its numbers, and it forgets them at the end."""
    replies, kept = [], []
    answer = network_in_process.Network.answer

    def noted(self, client, step, message, form):
        reply = answer(self, client, step, message, form)
        kept.append(self.own[client]["summand"])
        replies.append((step, reply))
        return reply

    monkeypatch.setattr(network_in_process.Network, "answer", noted)
    network_in_process.both("fedavg", list(COHORT), MASKED, rounds=1)
    assert [set(reply) for step, reply in replies if step == "update"] == [{"numbers"}] * len(
        COHORT
    )
    summands = set(filter(None, kept))
    assert len(summands) == len(COHORT)
    assert not any(kept[-len(COHORT) :])
    encoded = [FixedPoint(5).encode(np.frombuffer(own)).tobytes() for own in summands]
    frames = b"".join(reply["frames"] for _, reply in replies if "frames" in reply)
    assert len(frames) > len(COHORT) * len(encoded[0])
    assert not any(own[:80] in frames for own in (*summands, *encoded))
