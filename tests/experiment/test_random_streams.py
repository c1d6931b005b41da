"""What is random is drawn apart: no key, and no stream of NumPy's, serves two purposes."""

from importlib import import_module
from itertools import combinations
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_training import KEY, federation_of, rounds_of, training_of

from jaxfed.algorithms.dp_fedavg import dp_fedavg
from jaxfed.algorithms.dp_fedavg_records import dp_fedavg_records
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.audit.shadows import AuditShadows
from jaxfed.config import assembly, base
from jaxfed.random_streams import Stream
from jaxfed.training.local.batches import Batches
from jaxfed.training.round import labels_at_server
from jaxfed.training.round.labels_at_server import ServerWithLabels

BATCHES = Batches("joint", 5, 1)


def family(key):
    """The key and those that `split` and small `fold_in`s make of it: JAX gives both the same."""
    children = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(8))
    return {tuple(map(int, jax.random.key_data(one))) for one in (key, *children)}


def assert_apart(keys):
    for one, other in combinations(map(family, keys), 2):
        assert not one & other


def recorded(monkeypatch, *places):
    """The keys, as they come, of functions by file, name and position of the key."""
    seen = []

    def recording(function, position):
        def recorded(*arguments, **keywords):
            jax.debug.callback(
                lambda data: seen.append(jax.random.wrap_key_data(data)),
                jax.random.key_data(arguments[position]),
            )
            return function(*arguments, **keywords)

        return recorded

    for file, name, position in places:
        module = import_module(f"jaxfed.{file}")  # a package has a function of that name
        monkeypatch.setattr(module, name, recording(getattr(module, name), position))
    return seen


def test_local_steps_and_statistics_have_keys_of_their_own(monkeypatch):
    """Static statistics: two passes over each of two clients."""
    seen = recorded(
        monkeypatch,
        ("training.round.client_round", "train", 2),
        ("training.round.runner", "measured_statistics", 4),
    )
    training = training_of(BATCHES, batch_norm=True, batch_statistics="static")
    algorithm = fedavg(training=training)
    federation = federation_of([10, 10])
    state, _ = algorithm.round(algorithm.init(KEY, federation), federation.cohort(), KEY)
    jax.block_until_ready(state)
    jax.effects_barrier()
    assert len(seen) == 4
    assert_apart(seen)


def test_the_servers_statistics_share_no_key_with_its_training(monkeypatch):
    """Beside clients it trains with the key of its stream, and measures the mean with another."""
    seen = []
    monkeypatch.setattr(
        labels_at_server, "measured_statistics", lambda *given, **size: seen.append(given[4]) or {}
    )
    training = SimpleNamespace(model=None, server=SimpleNamespace(batches=BATCHES))
    own = SimpleNamespace(x=None, mask=jnp.ones(3, bool))
    ServerWithLabels(training, None, own, joins=True).measured({}, jnp.ones(2), None, own, KEY)
    assert_apart([*seen, jax.random.fold_in(KEY, Stream.SERVER_TRAINING)])


@pytest.mark.parametrize(
    ("make", "where", "number"),
    [
        (dp_fedavg, "training.aggregate", 6),  # the server's, a round each
        # Two steps a client and round.
        (dp_fedavg_records, "algorithms.dp_fedavg_records", 16),
    ],
)
@pytest.mark.sample(1)
def test_noise_on_models_has_keys_of_its_own(make, where, number, monkeypatch):
    """Of two clients, in two rounds each: local steps, who is drawn in them, and noise."""
    seen = recorded(
        monkeypatch,
        ("training.round.client_round", "train", 2),
        ("algorithms.dp_fedavg_records", "drawn_examples", 1),
        (where, "noisy", 1),
    )
    given = {"share": 0.5} if make is dp_fedavg_records else {}
    rounds_of(make(training=training_of(BATCHES), **given), federation_of([10, 10], 5), 2)
    jax.effects_barrier()
    assert len(seen) == number
    assert_apart(seen)


def test_noise_on_the_servers_mean_shares_no_key_with_the_first_model_or_a_round():
    """The experiment's key makes the model, and by `fold_in` the rounds' keys."""
    algorithm, federation = dp_fedavg(training=training_of(BATCHES)), federation_of([10, 10])
    noise = algorithm.init(KEY, federation).optimizer.key
    for key in (KEY, jax.random.fold_in(KEY, 1), jax.random.fold_in(KEY, 2)):
        assert_apart([noise, key])


def test_shadow_models_share_no_key_with_the_runs_own():
    """Else the attacker's models would begin where the attacked ones do."""
    config = SimpleNamespace(seed=3, audit=SimpleNamespace(shadows=4))
    shadows = AuditShadows(config, None, None, (1,), "fedavg", 1, None, None)
    assert_apart([shadows._key(), jax.random.key(4)])


def test_a_new_heads_weights_are_drawn_from_no_rounds_key(monkeypatch):
    encoder = SimpleNamespace(read=lambda start, new_head: start)
    monkeypatch.setattr(assembly, "_pretrained", lambda config: encoder)
    config = base.get_config()
    config.training.initial_model, config.seed = "pretrained", 3
    model = SimpleNamespace(init=lambda key: key)
    assert_apart([assembly.initial_model(config, model, 1), jax.random.key(4)])
