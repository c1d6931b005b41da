"""From a config to an algorithm: build a method's ingredients, and call its factory.

    algorithm = make_algorithm(config, "fedavg_xclp", federation, repeat)

A method that takes `training` receives a `Training` built from the sections `model`, `training`,
`pseudo_label`, `xclp`, `per_client_lp` and `execution`. One that takes `learner` receives per-client models
built from the section `learner` (`jaxfed.config.methods`). The settings of a one-shot method may be
selected by cross-validation (section `selection`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxfed import xclp
from jaxfed.config import methods
from jaxfed.config.build.networks import check_size, initial_model, make_model
from jaxfed.config.build.views import change_of, check_augmentation
from jaxfed.config.sections import MIXED, WITH_MOMENTUM, TrainingSection, section_of
from jaxfed.errors import UsageError, section
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution.client_map import (
    MapClients,
    client_map,
    even_devices,
    fastest_apart,
    fastest_strategy,
    is_one_cpu,
)
from jaxfed.federation.execution.memory import require
from jaxfed.federation.execution.settings import HERE, Execution, ReportProgress
from jaxfed.federation.method import Method
from jaxfed.federation.sampling import participation
from jaxfed.learners import LEARNERS, Learner, mixed
from jaxfed.learners.learner import unnamed
from jaxfed.settings import settings_of
from jaxfed.training.client_execution import ClientExecution
from jaxfed.training.local import losses
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.pseudo_labels.label_sources import PSEUDO_LABELS, LabelSources
from jaxfed.training.server import aggregate
from jaxfed.training.server.aggregate import adaptive
from jaxfed.training.server.server_training import ServerTraining
from jaxfed.training.specification import Training
from jaxfed.xclp.one_shot.cross_validation import cross_validated

_NO_NEEDS = Method()
Factory = Callable[..., FederatedAlgorithm]


def make_algorithm(
    config: ConfigDict,
    name: str,
    federation: Federation,
    repeat: int = 0,
    progress: ReportProgress | None = None,
    map_clients: MapClients | None = None,
    tell: Callable[[str], None] | None = None,
    folder: Path | None = None,
    call: Callable[[Factory, dict[str, Any]], FederatedAlgorithm] = lambda make, given: make(
        **given
    ),
) -> FederatedAlgorithm:
    """Build the method of this name for clients such as the federation's.

    `progress` is called within its rounds. `tell` receives a line on the memory of its rounds before the
    first one. Clients are executed by `map_clients` if given, else according to `config.execution`. States of
    clients that exceed the memory lie in `folder`. `call` calls the factory with ingredients and settings.

    Raises:
        UsageError: the method or its ingredients cannot work with a value.
    """
    factory, own = methods.factory_of(config, name), methods.keywords(config, name)
    needed, seen = methods.needs(config, name), methods.with_own_training(config, name)
    execution = Execution(
        config.execution.workers,
        progress,
        # Of a graph; 0 selects the fastest number.
        num_devices={"auto": 0, "shard_map": jax.device_count()}.get(config.execution.strategy, 1),
        tell=tell,
        memory_limit=config.execution.memory_limit,
        folder=folder,
    )

    def make(settings: Mapping[str, Any], execution: Execution) -> FederatedAlgorithm:
        with methods.naming(config, name, settings):
            given = ingredients(
                needed.takes, seen, federation, repeat, execution, map_clients, needed
            )
            return call(factory, {**given, **own, **settings})

    if needed.trains:
        return make({}, execution)
    wanted, candidates = section_of(config, "selection"), settings_to_try(config, name)
    if wanted.settings == "given" or len(candidates) == 1:
        return make({}, execution)
    chosen = cross_validated(
        make,
        candidates,
        num_folds=wanted.folds,
        measure=wanted.measure,
        execution=execution,
    )
    if not chosen.course.one_shot:
        wrong = f"{name!r} needs more than one round, and cross-validation asks for labels in one"
        key = f"config.selection.candidates.{name}"
        raise UsageError(wrong, key=key, allowed="leave it out, and use a sweep")
    return chosen


def settings_to_try(config: ConfigDict, name: str) -> list[dict[str, Any]]:
    """Return every combination of a method's values in `selection.candidates`, its own settings first.

    A variant without candidates uses those of its algorithm. Keys in the method's `select` are omitted,
    because leave-one-out selects them.
    """
    candidates, own = config.selection.candidates, methods.keywords(config, name)
    tried = candidates.get(name, candidates.get(methods.algorithm_of(config, name), {}))
    left = {entry.partition(":")[0] for entry in own.get("select", ())}
    values = {key: value for key, value in tried.items() if value and key not in left}
    given = {key: own[key] for key in values}
    grid = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    return [given, *(settings for settings in grid if settings != given)]


def ingredients(
    takes: Collection[str],
    config: ConfigDict,
    federation: Federation,
    repeat: int,
    execution: Execution = HERE,
    map_clients: MapClients | None = None,
    needed: Method = _NO_NEEDS,
) -> dict[str, Any]:
    """Build the ingredients `takes` of a method (`jaxfed.federation.method.INGREDIENTS`).

    Learners among them:

    learner           the learner of all clients, also of several kinds (`learner.names`)
    server_learner    the learner of the first kind, for one client with all rows (`Federation.pooled`)
    network           function: keywords -> learner of networks; keywords replace values of `learner.network`
    """

    def training(clients: Federation = federation) -> Training:
        return make_training(config, clients, repeat, execution, map_clients, needed)

    def of_clients(name: str, clients: Federation = federation, **own: Any) -> Learner:
        given: dict[str, Any] = {**config.learner.get(name, {}), **own}
        make: dict[str, Callable[[], Any]] = {
            "training": lambda: training(clients),
            "num_classes": lambda: federation.num_classes,
            "execution": lambda: execution,
        }
        taken = {key: make[key]() for key in make if methods.learner_takes(name, key)}
        with section(f"config.learner.{name}", given):
            made = LEARNERS[name](**taken, **given)
        return made._replace(name_of=lambda client: name) if made.name_of is unnamed else made

    def task() -> Any:
        from jaxfed.algorithms.protofssl.settings import PrototypeTask

        return PrototypeTask(
            federation.num_classes,
            federation.max_labels,
            partial(make_model, config, federation, head=False),
            # On a network no party knows this number for all clients.
            federation.max_labels_of_a_class if federation.census is None else 0,
        )

    def learner() -> Learner:
        made = [of_clients(name) for name in learners]
        return mixed(made) if config.learner.name == MIXED else made[0]

    learners = methods.learner_names(config)
    make: dict[str, Callable[[], Any]] = {
        "training": training,
        "participation": lambda: participation(
            config, federation, config.seed + repeat, config.rounds
        ),
        "task": task,
        "execution": lambda: execution,
        "num_classes": lambda: federation.num_classes,
        "learner": learner,
        "server_learner": lambda: of_clients(learners[0], federation.pooled()),
        "network": lambda: partial(of_clients, "network"),
        "public": lambda: federation.public_examples,
        "public_labels": lambda: federation.public_labels,
    }
    return {name: make[name]() for name in takes}


def make_training(
    config: ConfigDict,
    federation: Federation,
    repeat: int,
    execution: Execution = HERE,
    map_clients: MapClients | None = None,
    needed: Method = _NO_NEEDS,
) -> Training:
    """Build the training specification of a config for the clients' shapes and a method's needs."""
    wanted = section_of(config, "training")
    if needed.two_views:
        check_augmentation(config, "strong_augmentation", federation.x)
    check_augmentation(config, "augmentation", federation.x)
    model = make_model(config, federation, private=needed.private)
    check_size(config, model)
    augment = change_of(config, "augmentation")
    pointwise = losses.POINTWISE[wanted.loss]
    if wanted.class_weights:
        if len(wanted.class_weights) != federation.num_classes:
            numbers, classes = len(wanted.class_weights), federation.num_classes
            wrong = f"{numbers} numbers, but {config.dataset.name} has {classes} classes"
            key = "config.training.class_weights"
            raise UsageError(wrong, key=key, allowed="() weighs all alike")
        pointwise = losses.class_weighted(pointwise, wanted.class_weights)
    batches = _batches(wanted, federation)
    of_labels = _at_most(wanted.batch_size, federation.max_labels)
    of_server = _at_most(wanted.server_batch_size, len(federation.server))
    return Training(
        model=model,
        local=LocalTraining(
            optimizer=partial(_client_optimizer, wanted),
            client_optimizer=wanted.client_optimizer,
            learning_rate=_schedule(wanted, config.rounds),
            batches=batches,
            labeled_batches=replace(batches, scheme="joint", size=of_labels, unlabeled_ratio=1),
            pointwise=pointwise,
            augment=augment,
            strong_augment=change_of(config, "strong_augmentation"),
            batch_statistics=wanted.batch_statistics,
        ),
        server=ServerTraining(
            aggregate=aggregate.server_optimizer(_server_optimizer(wanted)),
            weighting=aggregate.WEIGHTINGS.get(wanted.weighting),  # None: that of the paper
            examples=federation.server_examples,
            batches=Batches("joint", of_server, wanted.server_epochs),
        ),
        labels=_label_sources(config, augment, federation),
        execution=_client_execution(config, federation, execution, map_clients),
        labeled_only_rounds=wanted.labeled_only_rounds,
        training_cohort_size=wanted.training_cohort_size,
        initial_model=initial_model(config, model, repeat),
        is_shared=True,
    )


def _client_optimizer(
    wanted: TrainingSection, learning_rate: jax.Array
) -> optax.GradientTransformation:
    keywords: dict[str, Any] = {"learning_rate": learning_rate}
    if wanted.optimizer in WITH_MOMENTUM:
        keywords |= {"momentum": wanted.momentum or None, "nesterov": wanted.nesterov}
    plain = getattr(optax, wanted.optimizer)(**keywords)

    def update(updates: optax.Updates, state: optax.OptState, params: Any = None) -> Any:
        with jax.numpy_dtype_promotion("standard"):  # Adam raises floats to integer powers
            return plain.update(updates, state, params)

    optimizer = optax.GradientTransformation(plain.init, update)
    if not wanted.weight_decay:
        return optimizer
    return optax.chain(optax.add_decayed_weights(wanted.weight_decay), optimizer)


def _server_optimizer(wanted: TrainingSection) -> optax.GradientTransformation:
    """Return SGD (FedAvg), with momentum (FedAvgM), or an adaptive optimizer."""
    name, rate = wanted.server_optimizer, wanted.server_learning_rate
    if name == "sgd":
        return optax.sgd(rate, momentum=wanted.server_momentum or None)
    beta1, beta2, tau = wanted.server_beta1, wanted.server_beta2, wanted.server_tau
    return adaptive(name, rate, beta1=beta1, beta2=beta2, tau=tau)


def _schedule(wanted: TrainingSection, rounds: int) -> Callable[[jax.Array], jax.Array]:
    """Return the clients' learning rate as a function of the rounds done."""
    if wanted.schedule == "constant":
        return optax.constant_schedule(wanted.learning_rate)
    return optax.cosine_decay_schedule(wanted.learning_rate, wanted.schedule_rounds or rounds)


def _client_execution(
    config: ConfigDict,
    federation: Federation,
    execution: Execution,
    map_clients: MapClients | None,
) -> ClientExecution:
    """Return the execution of a round; a given `map_clients` comes before that of the config."""
    wanted, num_devices, map_apart = config.execution.strategy, 1, None
    strategy = fastest_strategy() if wanted == "auto" else wanted
    if strategy == "shard_map":
        num_devices = jax.device_count()
        if wanted == "auto":
            num_devices = even_devices(config.cohort_size or federation.num_clients)
            strategy = strategy if num_devices > 1 else "map"
    if map_clients is None:
        chunk_size = None  # one client
        if wanted == "auto":
            map_apart = fastest_apart()
            if jax.default_backend() != "cpu":
                chunk_size = federation.num_clients
        mesh = Mesh(jax.devices()[:num_devices], ("clients",))
        map_clients = partial(client_map, strategy=strategy, chunk_size=chunk_size, mesh=mesh)
        # On one CPU, labeling uses one device: all of its cores work on one graph.
        label_clients: MapClients = map_clients
        if is_one_cpu() and wanted == "auto":
            label_clients = partial(client_map, strategy="map", chunk_size=chunk_size)
    else:
        label_clients, num_devices = map_clients, 1 if is_one_cpu() else num_devices
    return ClientExecution(
        map_clients=map_clients,
        clients_multiple=num_devices,
        map_apart=map_apart,
        map_labeling=label_clients,
        host=execution,
    )


def _batches(wanted: TrainingSection, federation: Federation) -> Batches:
    most = federation.largest
    if wanted.batches == "paired":  # counts labeled examples, or all if no client has labels
        most = federation.max_labels or federation.largest
    size = _at_most(wanted.batch_size, most)
    epochs, what = wanted.epochs, f"an order of {federation.largest} examples each"
    num_bytes = 4 * epochs * federation.largest
    require(num_bytes, what, key="epochs", value=epochs, owner="config.training")
    return Batches(wanted.batches, size, wanted.epochs, wanted.local_steps, wanted.unlabeled_ratio)


def _at_most(size: int, most: int) -> int:
    """Return the batch size, at most what the largest client can fill; 0 selects that maximum."""
    return max(1, min(size, most) if size else most)


def label_settings(
    config: ConfigDict, num_classes: int
) -> tuple[xclp.Parameters, xclp.Propagation]:
    """Return the settings of pseudo-labels by XCLP, and by label propagation inside each client."""
    own = {key: config.xclp[key] for key in config.xclp if key in settings_of(xclp.Parameters)}
    with section("config.xclp", config.xclp):  # its other keys are of the one-shot method alone
        parameters = xclp.Parameters(num_classes=num_classes, **own)
    with section("config.per_client_lp", config.per_client_lp):
        return parameters, xclp.Propagation(num_classes=num_classes, **config.per_client_lp)


def _label_sources(
    config: ConfigDict, augment: losses.Augment | None, federation: Federation
) -> LabelSources:
    wanted, num_classes = config.pseudo_label, federation.num_classes
    xclp_parameters, own_parameters = label_settings(config, num_classes)
    return LabelSources(
        confidence=wanted.confidence,
        augment=augment if wanted.augmented_features else None,
        class_weights=wanted.class_weights,
        xclp_parameters=xclp_parameters,
        own_parameters=own_parameters,
        others={name: config.get(name, {}) for name in PSEUDO_LABELS.from_outside()},
    )
