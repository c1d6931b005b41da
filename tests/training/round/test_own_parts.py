"""Parts of a method of one's own: sources of labels, states and weights of clients."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxfed
from jaxfed import xclp
from jaxfed.training.pseudo_labels.label_sources import PSEUDO_LABELS
from jaxfed.training.pseudo_labels.pseudo_label import completed
from jaxfed.training.round.round import federated_training

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4)).astype(np.float32)
Y = np.where(np.arange(30) % 3 == 0, -1, np.arange(30) % 3)
FEDERATION = jaxfed.Federation.from_clients([(X[:15], Y[:15]), (X[15:], Y[15:])], num_classes=3)
NETWORK = jaxfed.from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,))


def training(labels=None):
    return jaxfed.Training(NETWORK, labels=labels or jaxfed.LabelSources())


def test_a_source_has_the_number_of_classes_or_is_refused(monkeypatch):
    """Where it is read, in the source's factory or in a round; other sources need none."""
    seen = []

    def eager(parts):
        seen.append(parts.num_classes)
        return in_a_round(parts)

    def in_a_round(parts):
        def pseudo_label(state, cohort, key, communication):
            seen.append(parts.num_classes)
            return completed(cohort, jnp.asarray(cohort.y), jnp.ones(cohort.y.shape))

        return pseudo_label

    monkeypatch.setitem(PSEUDO_LABELS, "eager", eager)
    monkeypatch.setitem(PSEUDO_LABELS, "in_a_round", in_a_round)
    fedavg, line = (
        jaxfed.algorithms.fedavg,
        r"^LabelSources\.num_classes=0: .*num_classes=\.\.\.\)\)$",
    )
    with pytest.raises(jaxfed.UsageError, match=line):
        fedavg(training=training(), pseudo_label="eager")
    late = fedavg(training=training(), pseudo_label="in_a_round")
    with pytest.raises(jaxfed.UsageError, match=line):
        jaxfed.simulate(late, FEDERATION)
    fedavg(training=training())
    assert seen == []
    for labels in (
        jaxfed.LabelSources(num_classes=3),
        jaxfed.LabelSources(own_parameters=xclp.Propagation(num_classes=3)),
    ):
        jaxfed.simulate(fedavg(training=training(labels), pseudo_label="eager"), FEDERATION)
    assert set(seen) == {3}


def test_states_of_clients():
    own = training()

    def local_update(client):
        return client.update(client.steps(own.loss), client_state=client.state + 1)

    method = federated_training(
        own, local_update, pseudo_label="none", init_client=lambda model, *_: jnp.zeros(2)
    )
    assert jaxfed.simulate(method, FEDERATION).last_state.clients.tolist() == [[1, 1], [1, 1]]


def test_weights_of_clients_may_be_zero():
    given = training().with_server(weighting=lambda data: jnp.float32(0))
    found = jaxfed.simulate(jaxfed.algorithms.fedavg(training=given), FEDERATION)
    assert found.records[-1]["clients"] == 0
