"""FedBuff against NumPy: changes of models of earlier rounds, their factors, and the server's step."""

from functools import cache, partial

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from plain_fedbuff import arrivals

import jaxfed
from jaxfed.algorithms.fedbuff import slots_of
from jaxfed.federation.clock import Clock, schedule_of
from jaxfed.federation.execution import ClientExecution, client_map
from jaxfed.federation.rounds import Sampling, play
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.testing.method_checks import assert_equal
from jaxfed.training.aggregate import by_examples
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.round.round import server_optimizer
from jaxfed.training.specification import ServerTraining, Training

SECOND = Clock(seconds_per_example=1.0)
SIZES = (2, 3, 7, 13, 17)
RATES = (0.5, 0.4, 0.3, 0.2, 0.1)


def clients_of(sizes):
    rng = np.random.default_rng(1)
    return [
        (rng.normal(size=(n, 4)).astype(np.float32), rng.integers(0, 3, n).astype(np.int32))
        for n in sizes
    ]


@cache
def method(name="fedbuff", *, server_rate=1.0, strategy="map", **settings):
    """One step of SGD on all of a client's examples, at rates of early rounds that fall."""
    network = jaxfed.from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), input_shape=(4,))
    batches = Batches("joint", 64, 1)
    local = LocalTraining(
        batches=batches,
        labeled_batches=batches,
        learning_rate=lambda count: jax.numpy.asarray(RATES)[
            jax.numpy.minimum(count, 4).astype(int)
        ],
    )
    server = ServerTraining(
        aggregate=server_optimizer(optax.sgd(server_rate)), weighting=by_examples
    )
    execution = ClientExecution(map_clients=partial(client_map, strategy=strategy))
    training = Training(network, local=local, server=server, execution=execution)
    return getattr(jaxfed.algorithms, name)(training=training, **settings)


def leaves(state):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.model)]


def first_model(algorithm, federation):
    """The model before the first round of `jaxfed.simulate`."""
    return leaves(algorithm.init(jax.random.fold_in(jax.random.key(0), 0), federation))


def gradient(parameters, x, y):
    """That of the mean cross-entropy of softmax(x kernel + bias), float64."""
    bias, kernel = parameters
    logits = x @ kernel + bias
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return [p.mean(axis=0), x.T @ p / len(y)]


def fedbuff(parameters, clients, size, rounds, exponent, server_rate):
    """The server's model after `rounds` steps of `size` arrivals; client j takes SIZES[j] seconds."""
    models = [parameters]
    for number, (arrived, _, versions) in enumerate(arrivals(SIZES, size, rounds)):
        total, weights = [0.0, 0.0], 0.0
        for client, begun in zip(arrived, versions, strict=True):
            x, y = clients[client]
            factor = (1 + number - begun) ** -exponent
            steps = gradient(models[begun], x.astype(np.float64), y)
            weights += len(y)
            rate = len(y) * factor * RATES[min(begun, 4)]
            total = [t - rate * g for t, g in zip(total, steps, strict=True)]
        models.append(
            [p + server_rate * t / weights for p, t in zip(models[-1], total, strict=True)]
        )
    return models[-1]


@pytest.mark.parametrize(
    ("size", "exponent", "server_rate"),
    [(2, 2.0, 1.3), (1, 0.5, 0.7), (3, 0.0, 1.0), (2, 0.5, 1.0)],
)
@pytest.mark.sample(1)
def test_fedbuff_against_numpy(size, exponent, server_rate):
    clients = clients_of(SIZES)
    federation = jaxfed.Federation.from_clients(clients, num_classes=3)
    own = {"concurrency": len(SIZES), "staleness_exponent": exponent}
    algorithm, rounds = method(server_rate=server_rate, **own), 25
    found = jaxfed.simulate(algorithm, federation, rounds=rounds, cohort_size=size, clock=SECOND)
    first = first_model(algorithm, federation)
    assert [leaf.shape for leaf in first] == [(3,), (4, 3)]
    expected = fedbuff(first, clients, size, rounds, exponent, server_rate)
    for a, b in zip(leaves(found.state), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    assert max(record["staleness"] for record in found.records) > 1


@pytest.mark.parametrize("cohort_size", [2, 0])
@pytest.mark.sample(1)
def test_equal_speeds_are_fedavg_bit_for_bit(cohort_size):
    federation = jaxfed.Federation.from_clients(clients_of([17] * 5), num_classes=3)
    options = {"rounds": 8, "cohort_size": cohort_size}
    fedavg = method("fedavg", server_rate=1.3)
    plain = jaxfed.simulate(fedavg, federation, **options)
    for algorithm in (fedavg, method(server_rate=1.3, concurrency=cohort_size or 5)):
        timed = jaxfed.simulate(algorithm, federation, clock=SECOND, **options)
        for a, b in zip(leaves(plain.state), leaves(timed.state), strict=True):
            assert np.array_equal(a, b)
        assert timed.records[-1]["simulated_seconds"] == 8 * 17
        assert ("staleness" in timed.records[-1]) == (algorithm is not fedavg)
    assert "simulated_seconds" not in plain.records[-1]


@pytest.mark.slow
def test_clients_may_be_computed_at_once():
    federation = jaxfed.Federation.from_clients(clients_of(SIZES), num_classes=3)
    options = {"rounds": 6, "cohort_size": 2, "clock": SECOND}
    one_by_one, at_once = (
        jaxfed.simulate(
            method(server_rate=1.3, strategy=name, concurrency=5), federation, **options
        )
        for name in ("map", "shard_map")
    )
    for a, b in zip(leaves(one_by_one.state), leaves(at_once.state), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_running_statistics_are_those_of_the_model_that_a_client_began_with():
    """Each client has one example, many times: the mean of any batch is that example."""

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(4, momentum=0.5, rngs=rngs)
            self.last = nnx.Linear(4, 3, rngs=rngs)

        def __call__(self, x):
            return self.last(self.norm(x))

    network = jaxfed.from_flax(Net, input_shape=(4,))
    batches = Batches("joint", 64, 1)
    local = LocalTraining(batches=batches, labeled_batches=batches)
    algorithm = jaxfed.algorithms.fedbuff(
        training=Training(network, local=local), concurrency=5, staleness_exponent=0.0
    )
    clients = [(np.repeat(x[:1], len(y), axis=0), y) for x, y in clients_of(SIZES)]
    federation = jaxfed.Federation.from_clients(clients, num_classes=3)
    _, schedule = schedule_of(SECOND, algorithm, federation, Sampling(1), 0, 12)
    found = jaxfed.simulate(algorithm, federation, rounds=12, cohort_size=1, clock=SECOND)
    means = [np.zeros(4)]  # after each number of steps
    for number, one in enumerate(schedule.rounds):
        (client,), (version,) = one.clients, one.version
        seen = 0.5 * means[version] + 0.5 * clients[client][0].mean(axis=0)
        means.append(means[number] + seen - means[version])
    statistics = nnx.split_state(found.state.model, nnx.BatchStat, ...)[0]
    np.testing.assert_allclose(statistics["norm"]["mean"][...], means[-1], atol=1e-5)


def test_a_resumed_state_has_the_models_that_clients_began_with(tmp_path):
    federation = jaxfed.Federation.from_clients(clients_of(SIZES), num_classes=3)
    algorithm, schedule = schedule_of(SECOND, method(concurrency=5), federation, Sampling(2), 0, 9)
    key = jax.random.key(0)
    start, cohort_of = algorithm.init(key, federation), schedule.cohorts(federation)
    played = play(algorithm, start, range(1, 10), cohort_of=cohort_of, key=key)
    states = [start, *(one.after for one in played)]
    for number in (1, 4, 8):
        Checkpoints(tmp_path / str(number)).save(number, states[number], {})
        restored = Checkpoints(tmp_path / str(number)).latest().state(template=states[0])
        left = range(number + 1, 10)
        *_, last = play(algorithm, restored, left, cohort_of=cohort_of, key=key)
        assert_equal(last.after, states[9])


def test_the_device_has_as_many_models_as_are_in_use():
    """Fewer than there are clients that train."""
    federation = jaxfed.Federation.from_clients(clients_of(range(4, 34)), num_classes=3)
    own = method(concurrency=20)
    algorithm, schedule = schedule_of(SECOND, own, federation, Sampling(5), 0, 30)
    state = algorithm.init(jax.random.key(0), federation)
    rows = {len(leaf) for leaf in jax.tree.leaves(state.memory)}
    assert rows == {max(slots_of(schedule.rounds)) + 1}
    assert 2 <= rows.pop() < 20
    assert algorithm.evaluate.evaluated(state).memory == ()
