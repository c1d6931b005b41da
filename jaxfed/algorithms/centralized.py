"""All labels in one place: centralized learning of one model, as in FedCT's Table 2.

    h <- A(D^1 u ... u D^m, h)        in each of a round's b steps

The upper bound of methods that share less. Bytes are not counted, since this is not a protocol. A round over
part of the clients uses the labels of these clients only.
"""

from __future__ import annotations

from functools import wraps

import jax
import numpy as np

from jaxfed.algorithms.local_learning import local_learning
from jaxfed.federation.algorithm import Evaluate, FederatedAlgorithm, Metrics, ServerState
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort, arranged
from jaxfed.federation.method import method, with_attributes
from jaxfed.learners.client_fit import check_clients
from jaxfed.learners.learner import Learner
from jaxfed.settings import Count


@method(
    title="All labels in one place",
    leaves="everything",
    pooled=True,
    takes=("server_learner", "num_classes"),
)
def centralized(
    *, server_learner: Learner, num_classes: int, steps: Count = 50
) -> FederatedAlgorithm:
    """One learner that has all clients' examples: local learning of a single client.

    Args:
        server_learner: A.
        num_classes: C.
        steps: b, steps of a round; a mini-batch each of networks, as a client's.

    Raises:
        UsageError: `init` gets a federation with new points at clients, or with labels at the server.
    """
    alone = local_learning(learner=server_learner, num_classes=num_classes, steps=steps)

    def init(key: jax.Array, federation: Federation) -> ServerState:
        check_clients(federation, num_classes)
        return alone.init(key, federation.pooled())

    def round(state: ServerState, cohort: Cohort, key: jax.Array) -> tuple[ServerState, Metrics]:
        return alone.round(state, _pooled(cohort), key)

    return alone._replace(init=init, round=round, evaluate=over_all(alone.evaluate))


def over_all(judge: Evaluate) -> Evaluate:
    """Measure one model on all clients' pooled examples."""

    @wraps(judge)
    def evaluate(state: ServerState, federation: Federation) -> Metrics:
        return judge(state, federation.pooled())

    return with_attributes(evaluate, of_clients=None)


def _pooled(cohort: Cohort) -> Cohort:
    """A cohort of one client that has the others' examples, those of lower numbers first."""
    by_number = arranged(cohort)
    is_client = np.asarray(by_number.client_id) >= 0
    x, y, mask = map(np.asarray, by_number[1:])
    return Cohort(
        client_id=np.zeros(1, np.int32),
        x=x.reshape(1, -1, *x.shape[2:]),
        y=np.where(is_client[:, None], y, -1).reshape(1, -1),
        mask=(mask & is_client[:, None]).reshape(1, -1),
    )
