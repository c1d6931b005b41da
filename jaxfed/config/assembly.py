"""From a config to an algorithm: build a method's ingredients, and call its factory.

    algorithm = make_algorithm(config, "fedavg_xclp", federation, repeat)
    algorithm, schedule = in_time(seen, name, algorithm, federation, seed)

With `preprocessing.views`, examples have features of an image and of its views in place of the image:

    x_i = [f(image_i), f(a_1(image_i)), .., f(a_V(image_i)), f(A_1(image_i)), .., f(A_V(image_i))]

f is the pretrained network, a_v are draws of `training.augmentation` and A_v of
`training.strong_augmentation`, made once before training. Where training augments example i, it draws one of
its V rows, uniformly; everywhere else an example is its first row. So methods that compare two views of an
image train a small network on features: a step costs thousands of times less than one through f.

A method that takes `training` receives a `Training` built from the sections `model`, `training`,
`pseudo_label`, `xclp`, `per_client_lp` and `execution`. One that takes `learner` receives per-client models
built from the section `learner` (`jaxfed.config.methods`). The settings of a one-shot method may be
selected by cross-validation (section `selection`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.networks import trained_network
from jaxfed.config.sections import MIXED, WITH_MOMENTUM, TrainingSection, section_of
from jaxfed.errors import UsageError, section
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock import Schedule, schedule_of
from jaxfed.federation.execution import client_map as executing
from jaxfed.federation.execution.client_map import MapClients, client_map
from jaxfed.federation.execution.settings import (
    HERE,
    ClientExecution,
    Execution,
    ReportProgress,
    require,
)
from jaxfed.federation.method import Method
from jaxfed.federation.sampling import Sampling, participation
from jaxfed.learners import INGREDIENTS, LEARNERS, Learner, mixed
from jaxfed.training.aggregate import WEIGHTINGS, adaptive
from jaxfed.training.local import augmentation, losses
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.pseudo_labels.label_sources import PSEUDO_LABELS, LabelSources
from jaxfed.training.round.round import server_optimizer
from jaxfed.training.specification import ServerTraining, Training
from jaxfed.xclp.one_shot.cross_validation import cross_validated

AUGMENTATIONS = ("augmentation", "strong_augmentation")
Factory = Callable[..., FederatedAlgorithm]


def make_algorithm(
    config: ConfigDict,
    name: str,
    federation: Federation,
    repeat: int = 0,
    progress: ReportProgress | None = None,
    map_clients: MapClients | None = None,
    call: Callable[[Factory, dict[str, Any]], FederatedAlgorithm] = lambda make, given: make(
        **given
    ),
) -> FederatedAlgorithm:
    """Build the method of this name for clients such as the federation's.

    `progress` is called within its rounds. Clients are executed by `map_clients` if given, else according to
    `config.execution`. `call` calls the factory with ingredients and settings.

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
    )

    def make(settings: Mapping[str, Any], execution: Execution) -> FederatedAlgorithm:
        ingredients = Ingredients(seen, federation, repeat, execution, map_clients, needed)
        with methods.naming(config, name, settings):
            return call(factory, {**ingredients.of(needed.takes), **own, **settings})

    wanted, candidates = section_of(config, "selection"), methods.settings_to_try(config, name)
    if needed.trains or wanted.settings == "given" or len(candidates) == 1:
        return make({}, execution)
    folds, measure = wanted.folds, wanted.measure
    chosen = cross_validated(
        make, candidates, num_folds=folds, measure=measure, execution=execution
    )
    if not chosen.course.one_shot:
        wrong = f"{name!r} needs more than one round, and cross-validation asks for labels in one"
        key = f"config.selection.candidates.{name}"
        raise UsageError(wrong, key=key, allowed="leave it out, and use a sweep")
    return chosen


@dataclass(frozen=True)
class Ingredients:
    """Objects that a run makes for one method (`jaxfed.federation.method.INGREDIENTS`).

    Attributes:
        config: the config as the method sees it (`methods.with_own_training`).
        federation: clients of the repeat.
        repeat: number of the repeat.
        here: processes and memory of the host.
        map_clients: execution of clients in place of that in `config.execution`.
        needed: declaration of the method.
    """

    config: ConfigDict
    federation: Federation
    repeat: int = 0
    here: Execution = HERE
    map_clients: MapClients | None = None
    needed: Method = field(default_factory=Method)

    def of(self, takes: Collection[str]) -> dict[str, Any]:
        """Return ingredient -> object, made for this call.

        Raises:
            UsageError: a part of it refuses a value, or these examples.
        """
        config, federation = self.config, self.federation
        made: dict[str, Callable[[], Any]] = {
            "participation": lambda: participation(
                config, federation, config.seed + self.repeat, config.rounds
            ),
            "task": self._task,
            "execution": lambda: self.here,
            "num_classes": lambda: federation.num_classes,
            "public": lambda: federation.public_examples,
            "public_labels": lambda: federation.public_labels,
            "learner": self.learner,
            "server_learner": self._server_learner,
            "network": lambda: partial(
                self._learner, "network"
            ),  # its keywords replace the config's
            "training": self.training,
        }
        return {name: made[name]() for name in takes}

    def _task(self) -> Any:
        from jaxfed.algorithms.protofssl.settings import PrototypeTask

        federation = self.federation
        return PrototypeTask(
            federation.num_classes,
            federation.max_labels,
            lambda: trained_network(self.config, federation, self.repeat, head=False)[0],
            # On a network no party knows this number for all clients.
            federation.max_labels_of_a_class if federation.census is None else 0,
        )

    def learner(self) -> Learner:
        """Learner of all clients, also of several kinds (`learner.names`)."""
        made = [self._learner(name) for name in methods.learner_names(self.config)]
        return mixed(made) if self.config.learner.name == MIXED else made[0]

    def _server_learner(self) -> Learner:
        """Return the learner of the first kind, for one client with all rows (`Federation.pooled`)."""
        alone = replace(self, federation=self.federation.pooled())
        return alone._learner(methods.learner_names(self.config)[0])

    def _learner(self, name: str, **own: Any) -> Learner:
        given: dict[str, Any] = {**self.config.learner.get(name, {}), **own}
        taken = self.of([each for each in INGREDIENTS if methods.learner_takes(name, each)])
        with section(f"config.learner.{name}", tuple(given)):
            return LEARNERS[name](**taken, **given)

    def training(self) -> Training:
        """Training specification for the clients' shapes and the method's needs."""
        config, federation = self.config, self.federation
        wanted = section_of(config, "training")
        for key in AUGMENTATIONS[: 1 + self.needed.two_views]:
            _check_augmentation(config, key, federation.x)
        model, start = trained_network(config, federation, self.repeat, private=self.needed.private)
        batches = _batches(wanted, federation)
        of_labels = _at_most(wanted.batch_size, federation.max_labels)
        of_server = _at_most(wanted.server_batch_size, len(federation.server))
        rate = optax.constant_schedule(wanted.learning_rate)
        if wanted.schedule == "cosine":
            num_rounds = wanted.schedule_rounds or config.rounds
            rate = optax.cosine_decay_schedule(wanted.learning_rate, num_rounds)
        return Training(
            model=model,
            local=LocalTraining(
                optimizer=partial(_client_optimizer, wanted),
                client_optimizer=wanted.client_optimizer,
                learning_rate=rate,
                batches=batches,
                labeled_batches=replace(batches, scheme="joint", size=of_labels, unlabeled_ratio=1),
                pointwise=_pointwise(config, wanted, federation.num_classes),
                augment=change_of(config, "augmentation"),
                strong_augment=change_of(config, "strong_augmentation"),
                batch_statistics=wanted.batch_statistics,
            ),
            server=ServerTraining(
                aggregate=server_optimizer(_server_optimizer(wanted)),
                weighting=WEIGHTINGS.get(wanted.weighting),  # None: that of the paper
                examples=federation.server_examples,
                batches=Batches("joint", of_server, wanted.server_epochs),
                sums=wanted.sums,
                presence=wanted.presence,
            ),
            labels=_label_sources(config, federation.num_classes),
            execution=self._client_execution(),
            labeled_only_rounds=wanted.labeled_only_rounds,
            training_cohort_size=wanted.training_cohort_size,
            initial_model=start,
            is_shared=True,
        )

    def _client_execution(self) -> ClientExecution:
        strategy, execute, number = self.config.execution.strategy, self.map_clients, 1
        if execute is None and strategy != "auto":
            execute = partial(client_map, strategy=strategy)
            number = jax.device_count() if strategy == "shard_map" else 1
        if execute is not None:
            return ClientExecution(map_clients=execute, clients_multiple=number, host=self.here)
        strategy = executing.fastest_strategy()
        if strategy == "shard_map":
            number = executing.even_devices(self.config.cohort_size or self.federation.num_clients)
            strategy = strategy if number > 1 else "map"
        # None is one client at a time.
        at_once = None if jax.default_backend() == "cpu" else self.federation.num_clients
        mesh = Mesh(jax.devices()[:number], ("clients",))
        execute = partial(client_map, strategy=strategy, chunk_size=at_once, mesh=mesh)
        # On one CPU, labeling uses one device: all of its cores work on one graph.
        one_by_one = partial(client_map, strategy="map", chunk_size=None)
        return ClientExecution(
            map_clients=execute,
            clients_multiple=number,
            map_apart=executing.fastest_apart(),
            map_labeling=one_by_one if executing.is_one_cpu() else execute,
            host=self.here,
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


def _pointwise(config: ConfigDict, wanted: TrainingSection, num_classes: int) -> losses.Pointwise:
    pointwise = losses.POINTWISE[wanted.loss]
    if not wanted.class_weights:
        return pointwise
    if (numbers := len(wanted.class_weights)) != num_classes:
        wrong = f"{numbers} numbers, but {config.dataset.name} has {num_classes} classes"
        key = "config.training.class_weights"
        raise UsageError(wrong, key=key, allowed="() weighs all alike")
    return losses.class_weighted(pointwise, wanted.class_weights)


def _batches(wanted: TrainingSection, federation: Federation) -> Batches:
    most = federation.largest
    if wanted.batches == "paired":  # counts labeled examples, or all if no client has labels
        most = federation.max_labels or federation.largest
    epochs, what = wanted.epochs, f"an order of {federation.largest} examples each"
    num_bytes = 4 * epochs * federation.largest
    require(num_bytes, what, key="epochs", value=epochs, owner="config.training")
    size, steps = _at_most(wanted.batch_size, most), wanted.local_steps
    return Batches(wanted.batches, size, epochs, steps, wanted.unlabeled_ratio)


def _at_most(size: int, most: int) -> int:
    """Return the batch size, at most what the largest client can fill; 0 selects that maximum."""
    return max(1, min(size, most) if size else most)


def _label_sources(config: ConfigDict, num_classes: int) -> LabelSources:
    wanted = config.pseudo_label
    xclp_parameters, own_parameters = methods.label_settings(config, num_classes)
    return LabelSources(
        confidence=wanted.confidence,
        augment=change_of(config, "augmentation") if wanted.augmented_features else None,
        class_weights=wanted.class_weights,
        xclp_parameters=xclp_parameters,
        own_parameters=own_parameters,
        others={name: config.get(name, {}) for name in PSEUDO_LABELS.from_outside()},
    )


def view_rows(config: ConfigDict) -> dict[str, range]:
    """Return key of `training` -> rows of an example that are its views."""
    number = config.preprocessing.views
    there = [key for key in AUGMENTATIONS if number and config.training[key]]
    return {key: range(1 + i * number, 1 + (i + 1) * number) for i, key in enumerate(there)}


def change_of(config: ConfigDict, key: str) -> losses.Augment | None:
    """Return the change of a batch that `training.KEY` describes, or the draw of a view in its place."""
    rows = view_rows(config).get(key)
    if rows is None:
        return augmentation.compose(config.training[key])

    def draw(key: jax.Array, x: jax.Array) -> jax.Array:
        """[B, 1 + 2 V, D] -> [B, 1, D]."""
        drawn = jax.random.randint(key, (len(x),), rows.start, rows.stop)
        of_all = x.reshape(-1, x.shape[-1])
        return of_all[jax.numpy.arange(len(x)) * x.shape[1] + drawn][:, None]

    return draw


def _check_augmentation(config: ConfigDict, key: str, x: np.ndarray) -> None:
    """Check that `training.KEY` can augment examples of this shape and range, x [n, ...]."""
    augment = augmentation.compose(config.training[key])
    if augment and not config.preprocessing.views:  # with views, images are augmented before
        examples = jax.ShapeDtypeStruct((1, *x.shape[1:]), jax.numpy.float32)
        with section("config.training", {"augmentation": key}):
            augmentation.check_levels(augment, x)
            jax.eval_shape(augment, jax.random.key(0), examples)


def in_time(
    config: ConfigDict, name: str, algorithm: FederatedAlgorithm, federation: Federation, seed: int
) -> tuple[FederatedAlgorithm, Schedule | None]:
    """Return a method in simulated time, and the schedule of its rounds; None if the clock is off.

    `config` is as the method sees it (`methods.with_own_training`), with its number of rounds; `seed` is that
    of the repeat.

    Raises:
        UsageError: settings that do not go together (`schedule_of`).
    """
    needed, training = methods.needs(config, name), config.training

    def processed(held: np.ndarray) -> np.ndarray:
        """Methods without a shared model process each example once."""
        if not needed.trains or needed.has_learners:
            return held
        batch = np.minimum(held, training.batch_size) if training.batch_size else held
        return training.local_steps * batch if training.local_steps else training.epochs * held

    clock, sampling = section_of(config, "clock"), Sampling(config.cohort_size, config.sampling)
    keys = {f"Clock.{key}": f"clock.{key}" for key in config.clock}
    keys |= {key: key for key in ("clock", *Sampling._fields)}
    timed = algorithm._replace(name=algorithm.name or name)
    with methods.naming(config, name), section("config", keys):
        return schedule_of(
            clock, timed, federation, sampling, seed, config.rounds, processed=processed
        )
