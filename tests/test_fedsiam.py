"""FedSiam: moving average, ramp-ups and layer selection by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_training import (
    KEY,
    assert_close,
    federation_of,
    rounds_of,
    training_of,
)

from jaxfed.algorithms.fedavg import fedavg
from jaxfed.algorithms.fedsiam import (
    fedsiam,
    layer_divergence,
    quantile_of,
    ramp_up,
    scheduled,
    selected,
    siamese_loss,
)
from jaxfed.errors import UsageError
from jaxfed.local_update import Batches
from jaxfed.losses import Batch, softmax_cross_entropy
from jaxfed.models.mlp import mlp
from jaxfed.server_state import together

pytestmark = pytest.mark.usefixtures("shared_programs")

SMALL = Batches("paired", 4, 2)


def test_without_consistency_the_online_network_is_fedavgs():
    federation = federation_of([12, 7, 20])
    training = training_of(SMALL, optimizer=lambda rate: optax.sgd(rate, momentum=0.5))
    plain = rounds_of(fedavg(training=training), federation, 3)
    siam = rounds_of(fedsiam(training=training, consistency_weight=0.0), federation, 3)
    for a, b in zip(plain, siam, strict=True):
        assert_close(b.model["online"], a.model)


def test_the_target_follows_and_its_memory_ramps_up():
    """One step a round: alpha is 1 - 1 / (r + 1), at most 0.6; weight decay is not the target's."""
    federation = federation_of([16])

    def decayed(rate):
        return optax.chain(optax.add_decayed_weights(0.1), optax.sgd(rate))

    training = training_of(Batches("joint", 16, 1), optimizer=decayed)
    states = rounds_of(fedsiam(training=training, average=0.6), federation, 4)
    target = states[0].model["target"]
    for alpha, state in zip([0, 1 / 2, 0.6, 0.6], states[1:], strict=True):
        target = jax.tree.map(
            lambda t, s, a=alpha: a * t + (1 - a) * s, target, state.model["online"]
        )
        assert_close(state.model["target"], target)


def test_the_loss_by_formula():
    model = mlp((4,), 3, hidden=())
    online, target = model.init(KEY), model.init(jax.random.key(1))
    x = np.random.default_rng(0).standard_normal((4, 4))
    batch = Batch(
        jnp.asarray(x, jnp.float32),
        jnp.array([1, 0, 0, 0]),
        jnp.array([1.0, 0, 0, 0]),
        jnp.array([True, True, True, False]),
        jnp.array([True, False, False, False]),
    )

    def probability(state):
        kernel, bias = (np.asarray(state["head"][n][...], np.float64) for n in ("kernel", "bias"))
        z = np.exp(x @ kernel + bias)
        return z / z.sum(axis=1, keepdims=True)

    p, q = probability(online), probability(target)
    state = together(online=online, target=target)
    expected = {
        "mse": np.square(p - q).mean(axis=1)[:3].mean(),
        "kl": np.sum(q * np.log(q / p), axis=1)[:3].mean(),
    }
    for kind, consistency in expected.items():
        loss = siamese_loss(model, 3.0, kind, augment=None, pointwise=softmax_cross_entropy)
        (value, _), gradient = jax.value_and_grad(loss, has_aux=True)(state, state, batch, KEY)
        assert float(value) == pytest.approx(-np.log(p[0, 1]) + 3 * consistency, rel=1e-5)
        assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradient["target"]))


def test_ramp_up():
    values = [float(ramp_up(jnp.float32(r), 4)) for r in (0, 2, 4, 9)]
    np.testing.assert_allclose(values, [np.exp(-5), np.exp(-5 / 4), 1, 1], rtol=1e-6)
    assert float(ramp_up(jnp.float32(0), 0)) == 1


def layered(values):
    return nnx.State(
        {
            name: {"kernel": nnx.Param(jnp.array(kernel)), "bias": nnx.Param(jnp.array(bias))}
            for name, (kernel, bias) in values.items()
        }
    )


def test_layers_are_measured_and_selected():
    online = layered({"a": ([3.0, 0.0], [4.0]), "b": ([1.0], [0.0, 0.0])})
    target = layered({"a": ([3.0, 3.0], [0.0]), "b": ([1.5], [0.0, 0.0])})
    state = together(online=online, target=target)
    np.testing.assert_allclose(layer_divergence(state), [5 / 5, 0.5 / 1])
    for is_sent, unsent in (([True, True], 0), ([False, True], 12), ([False, False], 24)):
        got, num_bytes = selected(state, jnp.array(is_sent))
        assert int(num_bytes) == unsent
        for name, sent in zip("ab", is_sent, strict=True):
            source = online if sent else target
            assert_close(got["online"][name], source[name])
        assert_close(got["target"], target)


@pytest.mark.parametrize(
    ("schedule", "quantile", "period", "expected"),
    [
        ("constant", 0.5, 3, [0.5, 0.5, 0.5, 0.5]),
        ("linear", 0.5, 3, [0, 0.5, 1, 0]),
        ("linear", 0.25, 3, [0, 0.25, 0.5, 0]),
        ("rectangle", 0.5, 4, [0, 0, 1, 1, 0]),
    ],
)
def test_schedules_have_the_quantile_as_their_mean(schedule, quantile, period, expected):
    values = [scheduled(quantile, schedule, period, r) for r in range(len(expected))]
    np.testing.assert_allclose(values, expected)
    assert np.mean(values[:period]) == pytest.approx(quantile)


def test_quantiles():
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert quantile_of(values, 0.0) == quantile_of(values[:0], 0.5) == -np.inf
    assert quantile_of(values, 0.5) == 2.5
    assert quantile_of(values, 1.0) == np.inf


def test_unsent_layers_are_not_counted():
    """Nothing is known in round 1, so all is sent; then the median of round 1's divergences rules."""
    federation = federation_of([12, 12, 12], 4)
    algorithm = fedsiam(training=training_of(SMALL), upload_quantile=0.5, upload_rounds=1)
    state, size = algorithm.init(KEY, federation), 4 * (4 * 8 + 8 + 8 * 3 + 3)
    sent = []
    for number in range(2):
        before = state
        state, metrics = algorithm.round(
            state, federation.cohort(), jax.random.fold_in(KEY, number)
        )
        sent.append((metrics["communication"]["upload_bytes"], float(metrics["layers_sent"])))
    assert sent[0] == (3 * 2 * size, 1.0)
    threshold = np.median(before.clients.divergence)
    is_sent = np.asarray(state.clients.divergence) >= threshold
    unsent = (~is_sent * [4 * (4 * 8 + 8), 4 * (8 * 3 + 3)]).sum()
    assert unsent > 0
    assert sent[1][0] == 3 * 2 * size - unsent
    assert sent[1][1] == pytest.approx(is_sent.mean())
    np.testing.assert_array_equal(state.clients.round, [1, 1, 1])


@pytest.mark.parametrize(
    "keywords",
    [{"consistency": "mae"}, {"average": 1.5}, {"upload_rounds": 0}, {"evaluated": "both"}],
)
def test_mistakes_are_named(keywords):
    (name, value), *_ = keywords.items()
    with pytest.raises(UsageError, match=f"fedsiam.{name}={value!r}"):
        fedsiam(training=training_of(SMALL), **keywords)
