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
from jaxfed.algorithms.fedrgd import fedrgd
from jaxfed.algorithms.fedsem import fedsem
from jaxfed.algorithms.protofssl import protofssl
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.audit.shadows import AuditShadows
from jaxfed.config import assembly, base
from jaxfed.data import partition
from jaxfed.federation.clients import Federation
from jaxfed.federation.rounds import sample_clients
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "settings", "number"),
    [
        # The server trains, measures, each of two clients trains, all three measure.
        (fedavg, {"pseudo_label": "network"}, 7),
        (fedrgd, {}, 6),  # it trains beside them
    ],
)
@pytest.mark.sample(1)
def test_a_server_with_labels_has_keys_of_its_own(make, settings, number, monkeypatch):
    seen = recorded(
        monkeypatch,
        ("training.round.client_round", "train", 2),
        ("training.round.labels_at_server", "measured_statistics", 4),
        ("training.round.runner", "measured_statistics", 4),
    )
    whole = federation_of([10, 10, 10])
    unknown = np.full(10, -1)
    federation = Federation.from_clients(
        [(whole.x[whole.points(k)], unknown) for k in (0, 1)],
        test=(whole.x[whole.test], whole.y[whole.test]),
        server=(whole.x[whole.points(2)], whole.y[whole.points(2)]),
        num_classes=3,
    )
    training = training_of(
        BATCHES,
        batch_norm=True,
        batch_statistics="static",
        strong_augment=(lambda key, x: x) if make is fedrgd else None,
        server_examples=federation.server_examples,
        server_batches=BATCHES,
    )
    rounds_of(make(training=training, **settings), federation, 1)
    jax.effects_barrier()
    assert len(seen) == number
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


@pytest.mark.slow
def test_noise_on_prototypes_has_a_key_of_its_own(monkeypatch):
    """Of two clients, each in two rounds, local steps and noise."""
    seen = recorded(
        monkeypatch,
        ("training.round.client_round", "train", 2),
        ("algorithms.protofssl.method", "perturbed", 1),
    )
    task = PrototypeTask(num_classes=3, max_labels=5)
    algorithm = protofssl(training=training_of(BATCHES), task=task, noise=0.5, unlabeled_query=2)
    rounds_of(algorithm, federation_of([10, 10], 5), 2)
    jax.effects_barrier()
    assert len(seen) == 8
    assert_apart(seen)


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


@pytest.mark.slow
def test_a_teacher_labels_by_a_key_that_nothing_else_is_drawn_from():
    """The first is kept by `init`, the other by the first round of stage 2."""
    training = training_of(BATCHES, labeled_only_rounds=1)
    algorithm, federation = fedsem(training=training), federation_of([10, 10], 5)
    states = [algorithm.init(KEY, federation)]
    rounds = [jax.random.fold_in(KEY, number) for number in (1, 2)]
    for key in rounds:
        state, _ = algorithm.round(states[-1], federation.cohort(), key)
        states.append(state)
    assert_apart([states[0].teacher.key, states[-1].teacher.key, KEY])
    for key in rounds:
        assert_apart([states[-1].teacher.key, key])


def test_a_new_heads_weights_are_drawn_from_no_rounds_key(monkeypatch):
    encoder = SimpleNamespace(read=lambda start, new_head: start)
    monkeypatch.setattr(assembly, "_pretrained", lambda config: encoder)
    config = base.get_config()
    config.training.initial_model, config.seed = "pretrained", 3
    model = SimpleNamespace(init=lambda key: key)
    assert_apart([assembly.initial_model(config, model, 1), jax.random.key(4)])


def test_groups_tell_nothing_of_who_holds_one_more():
    """Five of twenty clients hold one more; how many of them are in the first group of five."""
    config = SimpleNamespace(cohort_size=5, sampling="groups")
    counts = []
    for seed in range(250):
        part = partition(np.arange(505) % 10, num_clients=20, seed=seed)
        sizes = np.array(list(map(len, part.labeled)))
        federation = SimpleNamespace(num_clients=20)
        counts.append((sizes == 26)[sample_clients(config, federation, seed, 1)].sum())
    assert np.mean(counts) == pytest.approx(5 / 4, abs=0.22)
    assert np.var(counts) == pytest.approx(5 / 4 * 3 / 4 * 15 / 19, abs=0.25)
