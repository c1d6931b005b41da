"""Parts of a method of one's own that cannot work are a line, not a result."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxfed
from jaxfed import xclp
from jaxfed.algorithms import ALGORITHMS
from jaxfed.training.local.client_data import usable
from jaxfed.training.pseudo_labels.label_sources import PSEUDO_LABELS
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabels, completed
from jaxfed.training.round.client_round import finished, local_steps
from jaxfed.training.round.round import federated_training

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4)).astype(np.float32)
Y = np.where(np.arange(30) % 3 == 0, -1, np.arange(30) % 3)
FEDERATION = jaxfed.Federation.from_clients([(X[:15], Y[:15]), (X[15:], Y[15:])], num_classes=3)
NETWORK = jaxfed.from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,))


def training(labels=None):
    return jaxfed.Training(NETWORK, labels=labels or jaxfed.LabelSources())


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            lambda c, y, w: completed(c, y[:, :1], w),
            r"labels of shape \(2, 1\) for examples \(2, 15",
        ),
        (lambda c, y, w: completed(c, y, w[0]), r"weights of shape \(15,\) for examples \(2, 15\)"),
        (lambda c, y, w: completed(c, w, w), "labels of type float32; use int32"),
        (lambda c, y, w: (y, w), "returned tuple; use the PseudoLabels that `completed` makes"),
        (lambda c, y, w: completed(c, y - 5, w), r"^mine: labels -5\.\.2; use -1\.\.2$"),
        (lambda c, y, w: completed(c, y + 9, w), r"^mine: labels -?\d\.\.9; use -1\.\.2$"),
        (lambda c, y, w: completed(c, y, w * jnp.nan), "some weight is negative or not finite"),
        (lambda c, y, w: PseudoLabels(y, -w, {}), "some weight is negative or not finite"),
    ],
)
def test_labels_of_a_source(found, message, monkeypatch):
    def mine(parts):
        def pseudo_label(state, cohort, key, communication):
            y = jnp.zeros(cohort.y.shape, jnp.int32)
            return found(cohort, y, y.astype(jnp.float32) + 1)

        return pseudo_label

    monkeypatch.setitem(PSEUDO_LABELS, "mine", mine)
    labels = jaxfed.LabelSources(own_parameters=xclp.Propagation(num_classes=3))
    method = jaxfed.algorithms.fedavg(training=training(labels), pseudo_label="mine")
    with pytest.raises(jaxfed.UsageError, match=message):
        jaxfed.simulate(method, FEDERATION)


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


@pytest.mark.parametrize(
    ("first", "after", "message"),
    [
        (
            jnp.zeros(2),
            lambda old: jnp.zeros(3),
            r"client_state: float32\[3\] in place of float32\[2\]",
        ),
        (
            jnp.int32(0),
            lambda old: old.astype(jnp.float32),
            r"client_state: float32\[\] in place of int32\[\]",
        ),
        (jnp.zeros(2), lambda old: (), "its structure differs from that of `init_client`"),
        (jnp.zeros(2), lambda old: old + 1, None),
    ],
)
def test_states_of_clients(first, after, message):
    own = training()

    def local_update(shared, client, key, *, batches):
        trained = local_steps(own, shared, client, key, loss=own.loss, batches=batches)
        return finished(own, shared, client, trained)._replace(client_state=after(client.state))

    method = federated_training(
        own, local_update, pseudo_label="none", init_client=lambda model, federation: first
    )
    if message is None:
        assert jaxfed.simulate(method, FEDERATION).last_state.clients.tolist() == [[1, 1], [1, 1]]
        return
    with pytest.raises(jaxfed.UsageError, match=message):
        jaxfed.simulate(method, FEDERATION)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda after, metrics: after, "returned ServerState; return .state, metrics."),
        (lambda after, metrics: (after, None), "metrics a dict"),
        (lambda after, metrics: (after, {**metrics, "note": "a"}), "metric 'note' is text"),
    ],
)
def test_results_of_a_round(change, message):
    plain = jaxfed.algorithms.fedavg(training=training())
    method = plain._replace(round=lambda *given: change(*plain.round(*given)))
    with pytest.raises(jaxfed.UsageError, match=message):
        jaxfed.simulate(method, FEDERATION)


def test_a_factory_that_returns_nothing(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "mine", lambda *, training: None)
    with pytest.raises(
        jaxfed.UsageError, match="factory of 'mine' returned NoneType; return a Fed"
    ):
        jaxfed.run("fedavg_xclp:smoke", algorithm="mine", baselines=(), progress=False)


@pytest.mark.parametrize(
    ("weigh", "told"),
    [
        (lambda labels: jnp.where(labels == 8, -2.5, 1.0), "-2.5"),
        (lambda labels: jnp.where(labels == 8, jnp.nan, 1.0), "nan"),
        (lambda labels: 1 / (labels - 8), "inf"),
    ],
)
def test_weights_of_clients(weigh, told):
    """Client 0 has 10 labels, client 1 has 8; the cohort has room for one more."""
    data = [(X[:15], Y[:15]), (X[:12], Y[:12])]
    federation = jaxfed.Federation.from_clients(data, num_classes=3)
    given = training().with_server(weighting=lambda data: weigh(usable(data).sum()))
    execution = dataclasses.replace(given.execution, clients_multiple=3)
    given = dataclasses.replace(given, execution=execution)
    line = f"^ServerTraining.weighting: it gives client 1 the weight {told}; return a number from 0 on$"
    with pytest.raises(jaxfed.UsageError, match=line):
        jaxfed.simulate(jaxfed.algorithms.fedavg(training=given), federation)


def test_weights_of_clients_may_be_zero():
    given = training().with_server(weighting=lambda data: jnp.float32(0))
    found = jaxfed.simulate(jaxfed.algorithms.fedavg(training=given), FEDERATION)
    assert found.records[-1]["clients"] == 0
