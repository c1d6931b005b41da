"""Costs of a client in one round, for each method of a config: `method_costs` and `answer_costs`.

Methods with one network
------------------------
Operations cover everything a client computes in the round: forward and backward pass, augmentation,
optimizer, prototypes. They come from XLA's analysis of its program (`jaxfed.kernels.devices`).
Bytes are counted by the round itself, with everything sent that may be sent
(`jaxfed.training.round.counted_round`). No client computes anything. Each method has the costs of two ways to
form batches:

    one_pass    one epoch over all examples of a client in one batch, as the paper's tables assume; an
                episode has all labels in its support and query, and every unlabeled example
    as_run      the config's own epochs, batches and episodes

Methods whose clients label public examples: FedCT's factor of 67
-----------------------------------------------------------------
A. Abourayya et al. (arXiv 2310.05696, Section 4): "with |U| = 10^4, FedCT achieved an ACC of 0.80 on a neural
network with 669 706 parameters, reducing communication over FedAvg by a factor of about 67". That is

    669,706 / 10^4 = 66.97,

which counts a label as 32 bits, like a parameter. With 10 classes the encodings differ:

    encoding                            bits a label    factor over parameters
    32-bit word                         32              67.0
    packed                              4               535.8
    binary vector, as in the paper      10              214.3
    soft prediction, float32            320             6.7

A method's bytes are those that its round counts (`jaxfed.federation.communication`), under the kind of sum
that the config selects. Nothing is trained: a learner that predicts the first class everywhere replaces the
clients' models.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.assembly import make_algorithm, trained_network
from jaxfed.config.data.simulation import Simulation
from jaxfed.data import Partition
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort
from jaxfed.federation.communication import num_bytes_of
from jaxfed.federation.method import declared
from jaxfed.federation.rounds import play
from jaxfed.kernels.devices import operations
from jaxfed.learners import Fitted, Learner, Taught
from jaxfed.models.layers import by_definition
from jaxfed.paper_costs import PAPER_COSTS, CostSetting
from jaxfed.training.pseudo_labels.prototypes import embedding_size
from jaxfed.training.round.counted_round import CountingClients, RoundCosts, round_costs

_EPISODES = ("support", "query", "unlabeled_query")


class MethodCosts(NamedTuple):
    """Costs of one client in one round of a method.

    Fields:
        method: its name in the config.
        one_pass, as_run: see the module's docstring.
        formula: (operations, bytes) of one epoch by the paper's formula, with this network and these clients;
            None if the paper has no formula for the method.
        paper: the paper's own (operations, bytes) for ResNet-9 on CIFAR-10; None likewise.
    """

    method: str
    one_pass: RoundCosts
    as_run: RoundCosts
    formula: tuple[float, float] | None
    paper: tuple[float, float] | None


def cohort_of(config: ConfigDict) -> Federation:
    """Return the first clients of the first repeat, as many as take part in a round."""
    federation = Simulation(config).federation(config.seed)
    number = config.cohort_size or federation.num_clients
    partition = Partition(*(clients[:number] for clients in federation.partition))
    cohort = Federation(federation.x, federation.y, partition, federation.num_classes)
    if not all(map(len, (*partition.labeled, *partition.unlabeled))):
        raise UsageError("config: costs need labeled and unlabeled examples at all clients")
    return cohort


def method_costs(config: ConfigDict) -> Iterator[MethodCosts]:
    """Yield the costs of each method of the config, which trains one network shared by all clients."""
    cohort = cohort_of(config)
    for name in methods.chosen(config):
        methods.check_trains(config, name)
        if methods.needs(config, name).has_learners:
            raise UsageError(
                f"config: {name!r} has a model for each client; operations are counted for one shared network"
            )
        seen = methods.with_own_training(config, name)
        row = PAPER_COSTS.get(methods.algorithm_of(config, name))
        setting = _setting(seen, name, cohort)
        yield MethodCosts(
            name,
            _costs(_in_one_pass(seen, name, cohort), name, cohort),
            _costs(seen, name, cohort),
            (row.operations(setting), row.bytes(setting)) if row else None,
            (1e9 * row.gigaflop, 1e6 * row.megabytes) if row else None,
        )


def _costs(config: ConfigDict, name: str, cohort: Federation) -> RoundCosts:
    """Return the round's costs, with convolutions counted by their definition as papers do.

    That includes the products with the padding.
    """
    clients = CountingClients()
    with by_definition():
        algorithm = make_algorithm(config, name, cohort, map_clients=clients)
        return round_costs(algorithm, clients, cohort, jax.random.key(config.seed))


def _in_one_pass(config: ConfigDict, name: str, cohort: Federation) -> ConfigDict:
    """Return the config with one epoch in one batch."""
    changed = config.copy_and_resolve_references()
    joint = {"batches": "joint", "batch_size": 0, "epochs": 1, "local_steps": 0}
    changed.training.update({**joint, "labeled_only_rounds": 0})
    keywords = methods.all_keywords(config, name)
    if _draws_episodes(keywords):
        episode = {
            "query": max(cohort.max_labels_of_a_class - keywords["support"], 1),
            "unlabeled_query": max(map(len, cohort.partition.unlabeled)),
        }
        with changed.unlocked():
            changed[name] = ConfigDict({**changed.get(name, {}), **episode})
    return changed


def _draws_episodes(keywords: dict[str, Any]) -> bool:
    return all(key in keywords for key in _EPISODES)


def _setting(config: ConfigDict, name: str, cohort: Federation) -> CostSetting:
    """Return the variables of the paper's formulas."""
    keywords = methods.all_keywords(config, name)
    model, _ = trained_network(config, cohort, 0, head=not _draws_episodes(keywords))
    state = jax.eval_shape(model.init, jax.random.key(0))
    image = jax.ShapeDtypeStruct((1, *cohort.x.shape[1:]), jnp.float32)
    sizes = ([len(own) for own in part] for part in cohort.partition[:2])
    labeled, unlabeled = (float(np.mean(of_clients)) for of_clients in sizes)
    return CostSetting(
        operations(model.apply, state, image),
        num_bytes_of(state),
        labeled,
        unlabeled,
        helpers=keywords.get("num_helpers", 0),
        interval=keywords.get("helper_interval", 1),
        prototype_bytes=4 * embedding_size(model, state, cohort),
        classes=cohort.num_classes,
    )


def answers_public(config: ConfigDict) -> bool:
    """True if a method of the config has per-client models, whose costs are counted here."""
    return any(methods.needs(config, name).has_learners for name in methods.chosen(config))


def answer_costs(config: ConfigDict) -> dict[str, Any]:
    """Return the bytes that each method of the config sends, also of methods that train one network.

    Returns:
        `num_public`, |U|; `num_classes`; `num_parameters` of the config's network, None if no method trains
        it; `methods`, an entry each: `method`, `upload_bytes` and `download_bytes` of a client in a round
        with an upload, and `factor`, the bytes of the parameters over those sent, None without either.
    """
    for name in methods.chosen(config):
        methods.check_trains(config, name)
    federation = Simulation(config).federation(config.seed)
    if not len(federation.public_examples):
        raise UsageError(
            "these costs are counted on public examples",
            key="config.federation.public_size",
            value=0,
            allowed="use 1 or more",
        )
    size = parameters = None
    if any(methods.uses_training(config, name) for name in methods.chosen(config)):
        model = jax.eval_shape(trained_network(config, federation, 0)[0].init, jax.random.key(0))
        parameters = num_bytes_of(model)
        size = sum(leaf.size for leaf in jax.tree.leaves(model))
    rows = []
    for name in methods.chosen(config):
        up, down = _sent(config, name, federation)
        factor = parameters / up if parameters is not None and up else None
        sent = {"upload_bytes": up, "download_bytes": down, "factor": factor}
        rows.append({"method": name, **sent})
    counted = {"num_public": len(federation.public_examples), "num_classes": federation.num_classes}
    return {**counted, "num_parameters": size, "methods": rows}


def _sent(config: ConfigDict, name: str, federation: Federation) -> tuple[float, float]:
    """Return bytes that one client sends and receives in the first round with an upload."""
    clients = config.cohort_size or federation.num_clients
    key = jax.random.key(config.seed)
    if not methods.needs(config, name).has_learners:
        counting = CountingClients()
        seen = methods.with_own_training(config, name)
        algorithm = make_algorithm(seen, name, federation, map_clients=counting)
        costs = round_costs(algorithm, counting, federation, key, rounds=1)
        return costs.upload_bytes, costs.download_bytes
    algorithm = _with_answers(config, name, federation)
    state, cohort = algorithm.init(key, federation), federation.cohort(list(range(clients)))
    rounds = range(config.rounds)  # teachers of PATE vote in a late one
    with closing(play(algorithm, state, rounds, cohort_of=lambda _: cohort, key=key)) as played:
        for one in played:
            counted = one.metrics.get("communication", {})
            if counted.get("upload_bytes"):
                return counted["upload_bytes"] / clients, counted["download_bytes"] / clients
    return 0.0, 0.0


def _with_answers(config: ConfigDict, name: str, federation: Federation) -> FederatedAlgorithm:
    """Return the method with clients that train nothing and only label public examples."""
    learner = _answering(federation.num_classes)
    given: dict[str, Any] = {
        "learner": learner,
        "server_learner": learner,
        "network": lambda **keywords: learner,
        "public": federation.public_examples,
        "public_labels": federation.public_labels,
        "num_classes": federation.num_classes,
    }
    factory, own = methods.factory_of(config, name), methods.keywords(config, name)
    with methods.naming(config, name):
        return factory(**{key: given[key] for key in declared(factory).takes}, **own)


def _answering(num_classes: int) -> Learner:
    """Return a learner that predicts the first class everywhere and needs no fitting."""

    def init(key: jax.Array, federation: Federation) -> np.ndarray:
        return np.zeros(federation.num_clients, np.float32)

    def fit(
        state: Any, cohort: Cohort, taught: Taught | None, key: jax.Array, steps: int
    ) -> Fitted:
        return Fitted(state, {}, {"clients": int(np.sum(np.asarray(cohort.client_id) >= 0))})

    def predict(state: Any, client_id: Array, x: Array) -> np.ndarray:
        return np.zeros((len(client_id), len(x)), np.int32)

    def spread(state: Any, client_id: Array, x: Array) -> np.ndarray:
        return np.tile(np.eye(1, num_classes, dtype=np.float32), (len(client_id), len(x), 1))

    return Learner(init, fit, predict, spread, spread)
