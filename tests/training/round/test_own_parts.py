"""Parts of a method of one's own: sources of labels and weights of clients."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxfed
from jaxfed import xclp
from jaxfed.training.pseudo_labels.pseudo_label import completed
from jaxfed.training.specification import PSEUDO_LABELS

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4)).astype(np.float32)
Y = np.where(np.arange(30) % 3 == 0, -1, np.arange(30) % 3)
FEDERATION = jaxfed.Federation.from_clients([(X[:15], Y[:15]), (X[15:], Y[15:])], num_classes=3)
NETWORK = jaxfed.from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,))


def training(labels=None):
    return jaxfed.Training(NETWORK, labels=labels or jaxfed.LabelSources())


def test_a_source_has_the_number_of_classes(monkeypatch):
    seen = []

    def own(parts):
        seen.append(parts.num_classes)
        return lambda state, cohort, key, communication: completed(
            cohort, jnp.asarray(cohort.y), jnp.ones(cohort.y.shape)
        )

    monkeypatch.setitem(PSEUDO_LABELS, "own", own)
    fedavg = jaxfed.algorithms.fedavg
    for labels in (
        jaxfed.LabelSources(num_classes=3),
        jaxfed.LabelSources(own_parameters=xclp.Propagation(num_classes=3)),
    ):
        jaxfed.simulate(fedavg(training=training(labels), pseudo_label="own"), FEDERATION)
    assert seen == [3, 3]


def test_weights_of_clients_may_be_zero():
    given = training().with_server(weighting=lambda data: jnp.float32(0))
    found = jaxfed.simulate(jaxfed.algorithms.fedavg(training=given), FEDERATION)
    assert found.records[-1]["clients"] == 0
