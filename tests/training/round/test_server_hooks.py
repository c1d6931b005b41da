"""Hooks of a round: their order, what they see, and that their states are the round's."""

import jax
import jax.numpy as jnp
import numpy as np
from small_training import (
    KEY,
    assert_same,
    federation_of,
    federation_with,
    rounds_of,
    training_of,
    with_sources,
)

from jaxfed.host.checkpoint import Checkpoints
from jaxfed.training.local.batches import Batches, usable
from jaxfed.training.round.client_round import plain_update
from jaxfed.training.round.parts import Control, Hook, UploadStore
from jaxfed.training.round.round import federated_training

FEDERATION = federation_of([6, 5, 4], num_labeled=3)


class Recording(Hook):
    """Appends to `ServerState.teacher`, and to the events of all hooks."""

    def __init__(self, name, events):
        self.name, self.events = name, events

    def init(self, state, federation, key):
        self.events.append((self.name, "init", federation.num_clients))
        return state._replace(teacher=(*state.teacher, jnp.float32(0)))

    def before(self, state, cohort, key, communication):
        self.events.append((self.name, "before", cohort.client_id.tolist()))
        communication.down(self.name, 3)
        return state._replace(teacher=tuple(each + 1 for each in state.teacher))

    def after(self, state, cohort, uploads, key, communication):
        self.events.append((self.name, "after", int(state.round)))
        return state._replace(teacher=tuple(each * 10 for each in state.teacher))


def method(training, **parts):
    update = plain_update(training.loss)
    return federated_training(training, update, pseudo_label="network", **parts)


def test_hooks_run_in_order_around_labeling_and_the_servers_step():
    events, training = [], training_of(Batches("joint", 4, 1))
    network = training.pseudo_labels["network"]

    def label(state, cohort, key, communication):
        events.append(("labels", [float(each) for each in state.teacher]))
        return network(state, cohort, key, communication)

    hooks = Recording("first", events), Recording("second", events)
    algorithm = method(with_sources(training, network=label), hooks=hooks)
    state = algorithm.init(KEY, FEDERATION)
    after, metrics = algorithm.round(state, FEDERATION.cohort([2, 0]), KEY)
    assert events == [
        ("first", "init", 3),
        ("second", "init", 3),
        ("first", "before", [0, 2]),
        ("second", "before", [0, 2]),
        ("labels", [2.0, 2.0]),
        ("first", "after", 1),
        ("second", "after", 1),
    ]
    assert [float(each) for each in after.teacher] == [200, 200]
    sent = metrics["communication"]["download"]
    assert (sent["first"], sent["second"]) == (3, 3)
    plain = rounds_of(method(training), FEDERATION, 1, [[0, 2]])[-1]
    with_hooks, _ = algorithm.round(state, FEDERATION.cohort([0, 2]), jax.random.fold_in(KEY, 0))
    assert_same(with_hooks.model, plain.model)


def test_a_memory_receives_each_clients_upload():
    training = training_of(Batches("joint", 4, 1), clients_multiple=2)
    plain, seen = plain_update(training.loss), []

    def update(client):
        own = plain(client)
        return own._replace(upload=jnp.sum(client.data.mask))

    def store(memory, ids, uploads, done, key, communication):
        seen.append((ids.tolist(), uploads.tolist(), int(done)))
        return memory + 1

    memory = UploadStore(lambda model, federation, key: np.int32(federation.num_clients), store)
    algorithm = federated_training(training, update, pseudo_label="none", hooks=(memory,))
    state = algorithm.init(KEY, FEDERATION)
    after, _ = algorithm.round(state, FEDERATION.cohort(), KEY)
    assert (int(state.memory), int(after.memory)) == (3, 4)
    assert seen == [([0, 1, 2, -1], [6, 5, 4, 0], 1)]


def test_control_is_over_the_clients_that_can_train_in_each_stage(tmp_path):
    """Two of four clients have labels, one has nothing; from stage 2 on all three with examples train."""
    training = training_of(Batches("joint", 4, 1), labeled_only_rounds=2)
    plain = plain_update(training.loss)

    def update(client):
        own = plain(client)
        trains = jnp.any(usable(client.data))
        change = jnp.where(trains, 6.0, 0) * jnp.ones(7)
        return own._replace(client_state=client.state + change, correction=change)

    algorithm = federated_training(
        training,
        update,
        pseudo_label="unlabeled",
        init_client=lambda model, federation, key: jnp.zeros(7),
        control=Control(lambda parameters: jnp.zeros(7)),
    )
    _, federation = federation_with([([0, 1], 2), ([2], 0), ([], 5), ([], 0)])
    state = algorithm.init(KEY, federation)
    for number, (cohort, able) in enumerate([([0, 2], 2), ([1, 3], 2), ([0, 1, 3], 3), ([2], 3)]):
        if number == 2:
            Checkpoints(tmp_path).save(2, state, {})
            state = Checkpoints(tmp_path).latest().state(template=state)
        state, _ = algorithm.round(state, federation.cohort(cohort), KEY)
        mean = np.asarray(state.clients).sum(axis=0) / able
        np.testing.assert_allclose(state.control, mean, rtol=1e-6)
