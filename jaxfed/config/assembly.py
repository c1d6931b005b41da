"""From a config to an algorithm: build a method's ingredients, and call its factory.

    algorithm = make_algorithm(config, "fedavg_xclp", federation, repeat)
    algorithm, schedule = in_time(seen, name, algorithm, federation, seed)

With `preprocessing.views`, examples have features of an image and of its views in place of the image:

    x_i = [f(image_i), f(a_1(image_i)), .., f(a_V(image_i)), f(A_1(image_i)), .., f(A_V(image_i))]

f is the pretrained network, a_v are draws of `training.augmentation` and A_v of
`training.strong_augmentation`, made once before training. Where training augments example i, it draws one of
its V rows, uniformly; everywhere else an example is its first row. So methods that compare two views of an
image train a small network on features: a step costs thousands of times less than one through f.

`training.initial_model` is '' for new weights, 'pretrained' for released ImageNet weights, or the state of an
earlier experiment, WORKDIR/states/METHOD-{repeat}. An unfinished run resumes only if such files are unchanged
(`checksums`): otherwise later repeats would come from other weights than the existing results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.keys import refused
from jaxfed.config.sections import MIXED, WITH_MOMENTUM, TrainingSection, section_of
from jaxfed.errors import UsageError, section
from jaxfed.federation import execution as executing
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.census import feature_sums, mean_and_deviation
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock import Schedule, schedule_of
from jaxfed.federation.communication import num_bytes_of
from jaxfed.federation.execution import (
    HERE,
    ClientExecution,
    Execution,
    MapClients,
    ReportProgress,
    client_map,
    require,
)
from jaxfed.federation.method import Method
from jaxfed.federation.rounds import Sampling, participation
from jaxfed.host.checkpoint import Checkpoint, Checkpoints
from jaxfed.host.location import location
from jaxfed.host.storage import file_checksum
from jaxfed.learners import INGREDIENTS, LEARNERS, Learner, mixed
from jaxfed.models import MODELS, Model
from jaxfed.models.efficientnet import NETWORKS
from jaxfed.models.encoders import Encoder, find_encoder
from jaxfed.models.model import DTYPES, in_precision, normalized, of_first_row
from jaxfed.models.trainable import partly_trained
from jaxfed.random_streams import Stream
from jaxfed.training.aggregate import WEIGHTINGS, adaptive
from jaxfed.training.local import augmentation, losses
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.round.round import server_optimizer
from jaxfed.training.specification import PSEUDO_LABELS, LabelSources, ServerTraining, Training
from jaxfed.xclp.one_shot.cross_validation import cross_validated

PRETRAINED = "pretrained"
_INITIAL = "training.initial_model"
AUGMENTATIONS = ("augmentation", "strong_augmentation")
Factory = Callable[..., FederatedAlgorithm]


def make_algorithm(
    config: ConfigDict,
    name: str,
    federation: Federation,
    repeat: int = 0,
    progress: ReportProgress | None = None,
    map_clients: MapClients | None = None,
    call: Callable[[Factory, dict[str, Any]], FederatedAlgorithm] = lambda make, keywords: make(
        **keywords
    ),
) -> FederatedAlgorithm:
    """Build the method of this name for clients such as the federation's.

    The factory is that of the method's file in `jaxfed.algorithms`. Its keywords are the ingredients that its
    declaration names, and the keys of the method's section of the config.

    `progress` is called within its rounds. Clients are executed by `map_clients` if given, else according to
    `config.execution`. `call` calls the factory with ingredients and settings.
    """
    factory = ALGORITHMS[methods.algorithm_of(config, name)]
    settings = methods.keywords(config, name)  # the section of its name, such as {"alpha": 0.9}
    declared, seen = methods.needs(config, name), methods.with_own_training(config, name)
    execution = Execution(
        config.execution.workers,
        progress,
        # Of a graph; 0 selects the fastest number.
        num_devices={"auto": 0, "shard_map": jax.device_count()}.get(config.execution.strategy, 1),
    )

    def make(candidate: Mapping[str, Any], execution: Execution) -> FederatedAlgorithm:
        ingredients = Ingredients(seen, federation, repeat, execution, map_clients, declared)
        with methods.naming(config, name, candidate):
            return call(factory, {**ingredients.of(declared.takes), **settings, **candidate})

    wanted, candidates = section_of(config, "selection"), methods.settings_to_try(config, name)
    if not declared.one_shot or wanted.settings == "given" or len(candidates) == 1:
        return make({}, execution)
    return cross_validated(make, candidates, measure=wanted.measure, execution=execution)


@dataclass(frozen=True)
class Ingredients:
    """Objects that a run makes for one method (`jaxfed.federation.method.INGREDIENTS`).

    `config` is as the method sees it (`methods.with_own_training`), `here` is the host, `needed` the method's
    declaration. `map_clients` executes clients in place of `config.execution`.
    """

    config: ConfigDict
    federation: Federation
    repeat: int = 0
    here: Execution = HERE
    map_clients: MapClients | None = None
    needed: Method = field(default_factory=Method)

    def of(self, takes: Collection[str]) -> dict[str, Any]:
        """Return ingredient -> object, made for this call."""
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
            # The learner of the first kind, for one client with all rows.
            "server_learner": lambda: replace(self, federation=federation.pooled())._learner(
                methods.learner_names(config)[0]
            ),
            # Its keywords replace the config's.
            "network": lambda: partial(self._learner, "network"),
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

    def _learner(self, name: str, **options: Any) -> Learner:
        settings: dict[str, Any] = {**self.config.learner.get(name, {}), **options}
        taken = self.of([each for each in INGREDIENTS if methods.learner_takes(name, each)])
        with section(f"config.learner.{name}", tuple(settings)):
            return LEARNERS[name](**taken, **settings)

    def training(self) -> Training:
        """Training specification for the clients' shapes and the method's needs."""
        config, federation = self.config, self.federation
        wanted = section_of(config, "training")
        for key in AUGMENTATIONS[: 1 + self.needed.two_views]:
            _check_augmentation(config, key, federation)
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
            initial_model=start,
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
    if len(wanted.class_weights) not in (0, num_classes):
        raise refused(config, "training.class_weights", f"there are {num_classes} classes")
    weights = wanted.class_weights
    return losses.class_weighted(pointwise, weights) if weights else pointwise


def _batches(wanted: TrainingSection, federation: Federation) -> Batches:
    most = federation.largest
    if wanted.batches == "paired":  # counts labeled examples, or all if no client has labels
        most = federation.max_labels or federation.largest
    size, steps = _at_most(wanted.batch_size, most), wanted.local_steps
    return Batches(wanted.batches, size, wanted.epochs, steps, wanted.unlabeled_ratio)


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
    present = [key for key in AUGMENTATIONS if number and config.training[key]]
    return {key: range(1 + i * number, 1 + (i + 1) * number) for i, key in enumerate(present)}


def change_of(config: ConfigDict, key: str) -> losses.Augment | None:
    """Return the change of a batch that `training.KEY` describes, or the draw of a view instead."""
    rows = view_rows(config).get(key)
    if rows is None:
        return augmentation.compose(config.training[key])

    def draw(key: jax.Array, x: jax.Array) -> jax.Array:
        """[B, 1 + 2 V, D] -> [B, 1, D]."""
        drawn = jax.random.randint(key, (len(x),), rows.start, rows.stop)
        of_all = x.reshape(-1, x.shape[-1])
        return of_all[jax.numpy.arange(len(x)) * x.shape[1] + drawn][:, None]

    return draw


def _check_augmentation(config: ConfigDict, key: str, federation: Federation) -> None:
    """Check that `training.KEY` can augment examples of the clients' shape and range."""
    augment = augmentation.compose(config.training[key])
    if augment and not config.preprocessing.views:  # with views, images are augmented before
        examples = jax.ShapeDtypeStruct((1, *federation.x.shape[1:]), jax.numpy.float32)
        with section("config.training", {"augmentation": key}):
            augmentation.check_levels(federation, augment)
            jax.eval_shape(augment, jax.random.key(0), examples)


def in_time(
    config: ConfigDict, name: str, algorithm: FederatedAlgorithm, federation: Federation, seed: int
) -> tuple[FederatedAlgorithm, Schedule | None]:
    """Return a method in simulated time, and the schedule of its rounds; None if the clock is off.

    `config` is as the method sees it (`methods.with_own_training`); `seed` is that of the repeat.
    """
    needed, training = methods.needs(config, name), config.training

    def processed(held: np.ndarray) -> np.ndarray:
        """Methods without a shared model process each example once."""
        if not needed.trains or needed.has_learners:
            return held
        batch = np.minimum(held, training.batch_size or held)
        return training.local_steps * batch if training.local_steps else training.epochs * held

    clock, sampling = section_of(config, "clock"), Sampling(config.cohort_size, config.sampling)
    keys = {f"Clock.{key}": f"clock.{key}" for key in config.clock}
    keys |= {key: key for key in ("clock", *Sampling._fields)}
    timed = algorithm._replace(name=algorithm.name or name)
    with methods.naming(config, name), section("config", keys):
        return schedule_of(
            clock, timed, federation, sampling, seed, config.rounds, processed=processed
        )


def make_model(
    config: ConfigDict, federation: Federation, *, head: bool = True, private: bool = False
) -> Model:
    """Build the config's network for the federation's examples; it normalizes its inputs.

    Without a head it ends with its features; a network from outside (`MODELS.register`) keeps its head. A
    `private` model normalizes by public examples only.
    """
    options = config.model.to_dict()
    name = options.pop("name")
    shape = federation.x.shape[2 if config.preprocessing.views else 1 :]
    num_classes = federation.num_classes if head or name in MODELS.from_outside() else None
    try:
        with section("config.model", [*options]):
            model = MODELS[name](shape, num_classes, **options)
    except UsageError as error:
        if error.key.startswith("config."):
            raise
        raise refused(config, "model.name", str(error)) from error
    if num_classes and name in MODELS.from_outside():
        state = jax.eval_shape(model.init, jax.random.key(0))
        example = jax.ShapeDtypeStruct((1, *shape), jax.numpy.float32)
        if (outputs := jax.eval_shape(model.apply, state, example).shape[-1]) != num_classes:
            raise refused(config, "model.name", f"{outputs} outputs, {num_classes} classes")
    if config.execution.precision != "float32":
        model = in_precision(model, DTYPES[config.execution.precision])
    model = normalized(model, *_normalization(config, federation, private=private))
    return of_first_row(model) if config.preprocessing.views else model


def trained_network(
    config: ConfigDict,
    federation: Federation,
    repeat: int,
    *,
    head: bool = True,
    private: bool = False,
) -> tuple[Model, nnx.State | None]:
    """Return the model of the part that `training.trainable` trains, and the state it starts from, or None.

    The rest of the network is that of `training.initial_model`, else drawn by the seed of the repeat, which
    every party has. Arguments and errors as those of `make_model`.
    """
    model, wanted = make_model(config, federation, head=head, private=private), config.training
    num_bytes = num_bytes_of(jax.eval_shape(model.init, jax.random.key(0)))
    require(num_bytes, "the parameters", key="config.model.name", value=config.model.name)
    start = initial_model(config, model, repeat) if head else None  # stored networks have one
    if wanted.trainable == "all":
        return model, start
    draw = jax.random.fold_in(jax.random.key(config.seed + repeat), Stream.FROZEN_WEIGHTS)
    whole = jax.jit(model.init)(draw) if start is None else start
    with section("config.training", {**{key: key for key in wanted}, "model": "trainable"}):
        options = {key: wanted[key] for key in ("lora_rank", "lora_alpha", "lora_factors")}
        model, part = partly_trained(model, whole, wanted.trainable, key=draw, **options)
    return model, None if start is None else part(start)


def scales_by_clients(config: ConfigDict, name: str) -> bool:
    """True if the networks of a method normalize their inputs by the data of all clients."""
    if methods.with_own_training(config, name).training.initial_model == PRETRAINED:
        return False  # by the numbers that the weights were trained with
    return methods.uses_training(config, name) and not methods.needs(config, name).private


def _normalization(
    config: ConfigDict, federation: Federation, *, private: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of the clients' data, or those that released weights were trained with.

    `private`: those of the public examples. Without any, they are 1/2 and 1/2 for images, else 0 and 1.
    """
    if config.training.initial_model == PRETRAINED:
        return _pretrained(config).scaling
    x = federation.x
    if private and len(federation.public):
        sums = feature_sums(x, federation.public)
        return mean_and_deviation(sums, of_bytes=x.dtype == np.uint8)
    if private:
        is_image = config.preprocessing.kind == "images"
        zeros = np.zeros(x.shape[-1], np.float32)
        return (zeros + 0.5, zeros + 0.5) if is_image else (zeros, zeros + 1)
    mean, deviation = federation.normalization
    if config.preprocessing.components:  # the last ones are mostly noise: one scale for all
        deviation = np.full_like(deviation, np.sqrt(np.mean(deviation**2)))
    return mean, deviation


def initial_model(config: ConfigDict, model: Model, repeat: int) -> Any:
    """Return the parameters that training starts from; None for new ones."""
    if config.training.initial_model == PRETRAINED:
        key = jax.random.fold_in(jax.random.key(config.seed + repeat), Stream.NEW_HEAD)
        return _pretrained(config).read(model.init(key), new_head=True)
    if not config.training.initial_model:
        return None
    template, saved = jax.eval_shape(model.init, jax.random.key(0)), _saved_model(config, repeat)
    try:
        state = saved.state(template, part="model")
    except UsageError as error:
        raise refused(config, _INITIAL, str(error)) from error
    for leaf, form in zip(jax.tree.leaves(state), jax.tree.leaves(template), strict=True):
        if (leaf.shape, leaf.dtype) != (form.shape, form.dtype):
            stored, expected = (f"{one.dtype}{list(one.shape)}" for one in (leaf, form))
            raise refused(config, _INITIAL, f"it has {stored}, the model {expected}")
    return state


def saved_models(config: ConfigDict) -> dict[int, Checkpoint]:
    """Return repeat -> state that its training starts from; {} for none, only 0 if all repeats share one."""
    if config.training.initial_model in ("", PRETRAINED):
        return {}
    number = config.num_repeats if "{repeat}" in config.training.initial_model else 1
    return {repeat: _saved_model(config, repeat) for repeat in range(number)}


def _saved_model(config: ConfigDict, repeat: int) -> Checkpoint:
    text = config.training.initial_model.replace("{repeat}", str(repeat))
    folder = location(text, f"config.{_INITIAL}")
    wanted = "give WORKDIR/states/NAME-{repeat}"
    try:
        saved = Checkpoints(folder).latest() if folder.is_dir() else None
    except UsageError as error:
        raise refused(config, _INITIAL, str(error)) from error
    if saved is None:
        raise refused(config, _INITIAL, f"{folder} holds no saved state", wanted)
    return saved


def _pretrained(config: ConfigDict) -> Encoder:
    """Return the released network that the config trains."""
    name = config.model.name
    folder = config.model.get("folder", "") if name == "vit" else ""
    if name not in NETWORKS and not folder:
        wrong = f"there are no weights for model.name={name!r}"
        allowed = f"use {', '.join(map(repr, NETWORKS))}, or 'vit' with a model.folder"
        raise refused(config, _INITIAL, wrong, allowed)
    key = "config.model.folder" if folder else f"config.{_INITIAL}"
    return find_encoder(folder or name, root=config.dataset.root or None, key=key)


def checksums(config: ConfigDict) -> dict[str, str]:
    """Return config key (with the repeat, for states) -> size and checksum of each file in use."""
    files, models = dict[str, Path](), dict[str, ConfigDict]()
    for name in methods.chosen(config):
        if methods.uses_training(config, name):
            key = methods.training_key(config, name, "initial_model")
            models[key] = methods.with_own_training(config, name)
    if config.preprocessing.kind == "federated_features":
        models[_INITIAL] = config
    if config.preprocessing.kind == "pretrained":
        encoder = find_encoder(config.preprocessing.network, root=config.dataset.root or None)
        files |= encoder.named_files("preprocessing.network", "preprocessing.network")
    for key, seen in models.items():
        if seen.training.initial_model == PRETRAINED:
            files |= _pretrained(seen).named_files("model.folder", key)
        for repeat, saved in saved_models(seen).items():
            files[f"{key} of repeat {repeat}"] = saved.file
    return {key: file_checksum(file) for key, file in files.items()}
