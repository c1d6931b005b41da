"""What clients send that answer public examples, beside parameters: FedCT's factor of 67, and what it counts.

    costs = answer_costs(config)

A. Abourayya et al. (arXiv 2310.05696, Section 4): "with |U| = 10^4, FedCT achieved an ACC of 0.80 on a neural
network with 669 706 parameters, reducing communication over FedAvg by a factor of about 67". That is

    669,706 / 10^4 = 66.97,

a label as long as a parameter, 32 bits. Of 10 classes a label needs 4, and the factor is 535.8; as a binary
vector, which is what the paper says labels are sent as, 10, and it is 214.3; soft predictions, float32, are a
factor of 6.7 smaller than parameters.

Bits are of messages: of a method's those that its round counts (`jaxfed.federation.communication`), with the
sums that the config asks for, and of the four encodings those of the arrays. Nothing is trained: in place of
clients' models stands one that says the first class everywhere.
"""

from __future__ import annotations

import inspect
from contextlib import closing
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.networks import in_section, make_model
from jaxfed.config.simulation import Simulation
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort
from jaxfed.federation.communication import label_bytes, num_bytes_of
from jaxfed.federation.rounds import play
from jaxfed.learners import Fitted, Learner, Taught
from jaxfed.privacy.xor_mechanism import one_hot
from jaxfed.training.counted_round import CountingClients, round_costs

PAPER_FACTOR = 67
_BYTE = 8


class Sent(NamedTuple):
    """What one client sends and receives in a round in which it sends anything, a mean over clients.

    Fields:
        method: its name in the config.
        upload_bytes, download_bytes: as the round counts them.
        factor: bytes of a network's parameters over those sent; None of a method that sends nothing, and
            where no method trains a network.
    """

    method: str
    upload_bytes: float
    download_bytes: float
    factor: float | None


class Encoding(NamedTuple):
    """One client's answers to all public examples, or its parameters: bits, and how many fewer they are."""

    name: str
    bits: int
    factor: float | None


class AnswerCosts(NamedTuple):
    """Of one config.

    Fields:
        num_public: |U|.
        num_classes: C.
        num_parameters: of the config's network, with running statistics where it has some; None where no
            method trains it, as of trees: what it would send is no part of this experiment.
        methods: of the config.
        encodings: see the module's docstring.
        paper_factor: 67.
    """

    num_public: int
    num_classes: int
    num_parameters: int | None
    methods: list[Sent]
    encodings: list[Encoding]
    paper_factor: int = PAPER_FACTOR


def answers_public(config: ConfigDict) -> bool:
    """Whether the costs of any of the config's methods are of this kind."""
    return any(methods.has_learners(config, name) for name in methods.chosen(config))


def answer_costs(config: ConfigDict) -> AnswerCosts:
    """What the config's methods send, those that train one model among them, and the encodings.

    Raises:
        UsageError: as `Simulation`; no public examples; a method that trains nothing.
    """
    for name in methods.chosen(config):
        methods.check_trains(config, name, "costs")
    simulation = Simulation(config)
    simulation.check()
    federation = simulation.federation(config.seed)
    if not len(federation.public_examples):
        raise UsageError(
            "config.federation.public_size=0: costs of answers are of public examples; allowed are 1 or more"
        )
    size = parameters = None
    if any(methods.uses_training(config, name) for name in methods.chosen(config)):
        model = jax.eval_shape(make_model(config, federation).init, jax.random.key(0))
        parameters = num_bytes_of(model)
        size = sum(leaf.size for leaf in jax.tree.leaves(model))
    sent = [_sent(config, name, federation, parameters) for name in methods.chosen(config)]
    number, classes = len(federation.public_examples), federation.num_classes
    return AnswerCosts(number, classes, size, sent, encodings(number, classes, parameters))


def encodings(num_public: int, num_classes: int, parameter_bytes: int | None) -> list[Encoding]:
    """Labels of so many examples in four encodings, and parameters of so many bytes, where there are any."""
    labels = np.zeros(num_public, np.int32)
    bits = {
        "labels, packed": _BYTE * label_bytes(num_public, num_classes),
        "labels, one-hot bits": one_hot(labels, num_classes).size,
        "labels, 32-bit words": _BYTE * labels.nbytes,
        "probabilities, float32": _BYTE * np.zeros((num_public, num_classes), np.float32).nbytes,
    }
    if parameter_bytes is not None:
        bits["parameters"] = _BYTE * parameter_bytes
    return [
        Encoding(name, number, _factor(parameter_bytes, number / _BYTE))
        for name, number in bits.items()
    ]


def _factor(parameters: int | None, sent: float) -> float | None:
    return None if parameters is None else parameters / sent


def _sent(config: ConfigDict, name: str, federation: Federation, parameters: int | None) -> Sent:
    clients = config.cohort_size or federation.num_clients
    key = jax.random.key(config.seed)
    if not methods.has_learners(config, name):
        counting = CountingClients()
        seen = methods.with_own_training(config, name)
        algorithm = make_algorithm(seen, name, federation, map_clients=counting)
        costs = round_costs(algorithm, counting, federation, key, rounds=1)
        up, down = costs.upload_bytes, costs.download_bytes
        return Sent(name, up, down, _factor(parameters, up))
    algorithm = _with_answers(config, name, federation)
    state = algorithm.init(key, federation)
    rounds = range(config.rounds)  # teachers of PATE vote in a late one
    cohort = federation.cohort(list(range(clients)))
    with closing(play(algorithm, state, rounds, cohort_of=lambda _: cohort, key=key)) as played:
        for one in played:
            told = one.metrics.get("communication", {})
            if told.get("upload_bytes"):
                up, down = told["upload_bytes"] / clients, told["download_bytes"] / clients
                return Sent(name, up, down, _factor(parameters, up))
    return Sent(name, 0.0, 0.0, None)


def _with_answers(config: ConfigDict, name: str, federation: Federation) -> FederatedAlgorithm:
    """The method, of clients that learn nothing and answer."""
    learner = _answering(federation.num_classes)
    given: dict[str, Any] = {
        "learner": learner,
        "server_learner": learner,
        "network": lambda **keywords: learner,
        "public": federation.public_examples,
        "public_labels": federation.public_labels,
        "num_classes": federation.num_classes,
    }
    factory, section = methods.factory_of(config, name), methods.keywords(config, name)
    taken = inspect.signature(factory).parameters
    with in_section(name, *section):
        return factory(**{key: given[key] for key in given if key in taken}, **section)


def _answering(num_classes: int) -> Learner:
    """Says the first class everywhere, and is fitted at once."""

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
