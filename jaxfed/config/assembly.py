"""From a config to an algorithm: the keywords of its section, and what training methods share.

    algorithm = make_algorithm(config, "fedavg_xclp", federation, repeat)

A factory in `jaxfed.algorithms` that has a keyword `training` gets a `jaxfed.training.ingredients.Training` made of
the sections `model`, `training`, `pseudo_label`, `xclp`, `per_client_lp` and `execution`. One that labels
in one shot may have its settings chosen by cross-validation, where the section `selection` says so.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from jaxfed import xclp
from jaxfed.algorithms import ALGORITHMS
from jaxfed.config.memory_demand import Demand, refuse_beyond
from jaxfed.config.model_options import check_options
from jaxfed.data import Partition
from jaxfed.errors import UsageError, suggestion
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.client_map import client_map
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution import HERE, Execution, Progress
from jaxfed.host.checkpoint import Checkpoint, Checkpoints
from jaxfed.models import MODELS, Model
from jaxfed.models.efficientnet import NETWORKS, Network
from jaxfed.models.pretrained import find_weights, read_weights
from jaxfed.models.wrapping import DTYPES, in_precision, normalized
from jaxfed.training import aggregate, augmentation, losses, pseudo_label
from jaxfed.training.ingredients import Training
from jaxfed.training.local_update import Batches
from jaxfed.xclp.cross_validation import cross_validated

SCHEDULES = ("constant", "cosine")
OPTIMIZERS = ("sgd", "adam", "rmsprop", "adagrad")
PRETRAINED = "pretrained"
SETTINGS = ("given", "cross_validated")

_HEAD = 0x68656164  # sets a new head's weights apart from the rounds, which the same key counts


def make_algorithm(
    config: ConfigDict,
    name: str,
    federation: Federation,
    repeat: int = 0,
    progress: Progress | None = None,
) -> FederatedAlgorithm:
    """The method of this name, for clients such as the federation's; `progress` within its rounds.

    Raises:
        UsageError: a value that the method or its ingredients cannot work with.
    """
    factory, section = ALGORITHMS[name], config.get(name, {})
    execution = Execution(config.execution.workers, progress)
    keywords = inspect.signature(factory).parameters
    if "training" in keywords:
        training = make_training(config, federation, repeat, execution)
        with in_section(name, *section):
            return factory(training=training, **section)

    def one_shot(settings: Mapping[str, Any], execution: Execution) -> FederatedAlgorithm:
        given = {**section, **settings}
        if "execution" in keywords:
            given["execution"] = execution
        tried = [key for key, value in settings.items() if value != section[key]]
        with in_section(name, *given), in_section(f"selection.candidates.{name}", *tried):
            return factory(num_classes=federation.num_classes, **given)

    wanted, candidates = config.selection, settings_to_try(config, name)
    if wanted.settings == "given" or len(candidates) == 1:
        return one_shot({}, execution)
    return cross_validated(
        one_shot,
        candidates,
        num_folds=wanted.folds,
        measure=wanted.measure,
        execution=execution,
    )


def settings_to_try(config: ConfigDict, name: str) -> list[dict[str, Any]]:
    """Every combination of a method's values in `selection.candidates`, the given settings first."""
    values = {k: v for k, v in config.selection.candidates.get(name, {}).items() if v}
    given = {key: config[name][key] for key in values}
    grid = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    return [given, *(settings for settings in grid if settings != given)]


@contextmanager
def in_section(name: str, *keys: str) -> Iterator[None]:
    """Say by its key in the config what a library's error calls by its own name.

    `KEY=...`, or `ANYTHING.KEY=...`, becomes `config.NAME.KEY=...` for the keys given, and
    `augmentation 'x'` names the only key.
    """
    try:
        yield
    except UsageError as error:
        message = str(error)
        found = re.match(r"(?:\w+\.)?(\w+)(?==|:)", message)
        if found and found[1] in keys:
            message = f"config.{name}.{message[found.start(1) :]}"
        elif message.startswith("augmentation "):
            message = f"config.{name}.{keys[0]}: {message}"
        raise UsageError(message) from error


def check_algorithm(config: ConfigDict, name: str) -> None:
    """Make the method once, for two clients without examples, for the sake of its own checks.

    Raises:
        UsageError: an unknown keyword, or a value that will not do.
    """
    known = inspect.signature(ALGORITHMS[name]).parameters.values()
    names = {parameter.name for parameter in known if parameter.kind is parameter.KEYWORD_ONLY}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known)
    given = {"training", "execution"}  # by `make_algorithm`, not by the section
    for key in config.get(name, {}):
        if key in given or (key not in names and not takes_any):
            raise UsageError(f"config.{name}.{key}: unknown key{suggestion(key, names - given)}")
    if "training" in names and _starts_from_state(config):
        with _naming_initial_model(config):
            for repeat in repeats_that_differ(config):
                _saved_model(config, repeat)
        config = config.copy_and_resolve_references()
        config.training.initial_model = ""  # whose shapes are not those of what follows
    nobody = tuple(np.zeros(0, np.int64) for _ in range(2))
    images = np.zeros((0, 32, 32, 3), np.float32)
    federation = Federation(images, np.zeros(0, np.int32), Partition(nobody, nobody, nobody), 2)
    make_algorithm(config, name, federation)


def check_model(config: ConfigDict, federation: Federation) -> Model:
    """The model for examples of this shape, which fits into memory and can be trained on them.

    Raises:
        UsageError: a model that is too large or does not take such examples, or augmentation of examples
            that are no images.
    """
    shape = federation.x.shape[1:]
    augment = augmentation.compose(config.training.augmentation)
    if augment:  # the strong ones are for some methods only, which find out when they use them
        examples = jax.ShapeDtypeStruct((1, *shape), jax.numpy.float32)
        with in_section("training", "augmentation"):
            jax.eval_shape(augment, jax.random.key(0), examples)
    model = make_model(config, federation)
    parameters = jax.eval_shape(model.init, jax.random.key(0))
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(parameters))
    given = {key: value for key, value in config.model.items() if key != "name"}
    options = ", ".join(f"{key}={value}" for key, value in given.items())
    what = f"with {options or 'its own options'} the parameters alone"
    refuse_beyond(Demand("model.name", config.model.name, num_bytes, what))
    return model


def trains(config: ConfigDict) -> bool:
    """Whether any of the experiment's methods trains a model."""
    names = (config.algorithm, *config.baselines)
    return any("training" in inspect.signature(ALGORITHMS[name]).parameters for name in names)


def check_models(config: ConfigDict, federation: Federation) -> None:
    """Whether training can start, in every repeat: from scratch, or from `training.initial_model`.

    Args:
        config: of the experiment.
        federation: examples of the shape that the model takes; any number.

    Raises:
        UsageError: as `check_model`; a state that is missing, damaged, or of a model of other leaves or
            shapes.
    """
    model = check_model(config, federation)
    if _starts_from_state(config):
        for repeat in repeats_that_differ(config):
            _initial_model(config, model, repeat)


def make_training(
    config: ConfigDict, federation: Federation, repeat: int, execution: Execution = HERE
) -> Training:
    """The ingredients that a config describes, fitted to the clients' shapes."""
    wanted = config.training
    model = make_model(config, federation)
    strategy = _strategy(config.execution)
    map_clients = partial(
        client_map, strategy=strategy, chunk_size=_chunk_size(config.execution, federation)
    )
    augment, pointwise = augmentation.compose(wanted.augmentation), _pointwise(wanted)
    return Training(
        model=model,
        loss=losses.weighted_loss(model, augment=augment, pointwise=pointwise),
        optimizer=partial(_optimizer, wanted),
        learning_rate=_schedule(wanted, config.rounds),
        batches=_batches(wanted, federation),
        labeled_batches=_labeled_batches(wanted, federation),
        aggregate=aggregate.server_optimizer(_server_optimizer(wanted)),
        weighting=aggregate.WEIGHTINGS[wanted.weighting],
        pseudo_labels=_pseudo_labels(
            config, model, map_clients, augment, federation.num_classes, execution
        ),
        batch_statistics=wanted.batch_statistics,
        labeled_only_rounds=wanted.labeled_only_rounds,
        initial_model=_initial_model(config, model, repeat),
        map_clients=map_clients,
        clients_multiple=jax.device_count() if strategy == "shard_map" else 1,
        pointwise=pointwise,
        augment=augment,
        strong_augment=augmentation.compose(wanted.strong_augmentation),
    )


def make_model(config: ConfigDict, federation: Federation) -> Model:
    """The config's network for the federation's examples, which it normalizes inside.

    Raises:
        UsageError: an option that the network does not take, or examples of a shape it does not take.
    """
    options = config.model.to_dict()
    name = options.pop("name")
    factory, execution = MODELS[name], config.execution
    check_options(name, factory, options)
    shape, num_classes = federation.x.shape[1:], federation.num_classes
    try:
        model = factory(shape, num_classes, convolution=execution.convolution, **options)
    except UsageError as error:
        raise UsageError(f"config.model.name={name!r}: {error}") from error
    if execution.precision != "float32":
        model = in_precision(model, DTYPES[execution.precision])
    return normalized(model, *_normalization(config, federation))


def _normalization(config: ConfigDict, federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    """The clients' mean and deviation, or what released weights were trained with."""
    if config.training.initial_model != PRETRAINED:
        return federation.normalization
    network = _pretrained_network(config)
    mean, deviation = (np.asarray(rgb) / 255 for rgb in (network.mean, network.deviation))
    return mean, deviation


def _pretrained_network(config: ConfigDict) -> Network:
    if config.model.name not in NETWORKS:
        raise UsageError(
            f"config.training.initial_model='{PRETRAINED}': there are weights for model.name out of "
            f"{', '.join(NETWORKS)}; it is {config.model.name!r}"
        )
    return NETWORKS[config.model.name]


def _pointwise(wanted: ConfigDict) -> losses.Pointwise:
    pointwise = losses.POINTWISE[wanted.loss]
    if not wanted.class_weights:
        return pointwise
    return losses.class_weighted(pointwise, wanted.class_weights)


def _strategy(execution: ConfigDict) -> str:
    """The config's, or by what `launch.bench --kernel=round` measured.

    On a CPU a loop over clients: all at once takes 1.4 to 2.5 times as long, and two devices made of
    two cores no less than one (0.85 to 1.0 of the time with 10 clients, 1.0 with 5). Elsewhere all at
    once, spread over the devices where there are several.
    """
    if execution.strategy != "auto":
        return execution.strategy
    if jax.default_backend() == "cpu":
        return "map"
    return "shard_map" if jax.device_count() > 1 else "vmap"


def _chunk_size(execution: ConfigDict, federation: Federation) -> int | None:
    """Clients at a time in a loop: the config's, else one; where "auto" uses several GPUs, all of each's."""
    if execution.chunk_size or execution.strategy != "auto" or jax.default_backend() == "cpu":
        return execution.chunk_size or None
    return federation.num_clients


def _optimizer(wanted: ConfigDict, learning_rate: jax.Array) -> optax.GradientTransformation:
    keywords: dict[str, Any] = {"learning_rate": learning_rate}
    if wanted.optimizer in ("sgd", "rmsprop"):
        keywords |= {"momentum": wanted.momentum or None, "nesterov": wanted.nesterov}
    optimizer = _promoting(getattr(optax, wanted.optimizer)(**keywords))
    if not wanted.weight_decay:
        return optimizer
    return optax.chain(optax.add_decayed_weights(wanted.weight_decay), optimizer)


def _server_optimizer(wanted: ConfigDict) -> optax.GradientTransformation:
    keywords: dict[str, Any] = {"learning_rate": wanted.server_learning_rate}
    if wanted.server_optimizer in ("sgd", "rmsprop"):
        keywords["momentum"] = wanted.server_momentum or None
    return _promoting(getattr(optax, wanted.server_optimizer)(**keywords))


def _promoting(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer with JAX's usual promotion of dtypes: Adam raises floats to an integer power."""

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(updates, state, params)

    return optax.GradientTransformation(optimizer.init, update)


def _schedule(wanted: ConfigDict, rounds: int) -> Callable[[jax.Array], jax.Array]:
    if wanted.schedule == "constant":
        return optax.constant_schedule(wanted.learning_rate)
    return optax.cosine_decay_schedule(wanted.learning_rate, wanted.schedule_rounds or rounds)


def _batches(wanted: ConfigDict, federation: Federation) -> Batches:
    most = federation.max_labels if wanted.batches == "paired" else federation.capacity
    size = _at_most(wanted.batch_size, most)
    return Batches(wanted.batches, size, wanted.epochs, wanted.local_steps, wanted.unlabeled_ratio)


def _labeled_batches(wanted: ConfigDict, federation: Federation) -> Batches:
    """One pass an epoch over the given labels, as many at a time as beside pseudo-labels."""
    size = _at_most(wanted.batch_size, federation.max_labels)
    return Batches("joint", size, wanted.epochs, wanted.local_steps)


def _at_most(size: int, most: int) -> int:
    """The batch's size; no larger than any client can fill it, 0 means exactly that."""
    return max(1, min(size, most) if size else most)


def _pseudo_labels(
    config: ConfigDict,
    model: Model,
    map_clients: pseudo_label.MapClients,
    augment: losses.Augment | None,
    num_classes: int,
    execution: Execution,
) -> dict[str, pseudo_label.PseudoLabel]:
    wanted = config.pseudo_label
    embed = pseudo_label.embedding(
        model, map_clients, augment=augment if wanted.augmented_features else None
    )
    network = pseudo_label.network_labels(model, embed, confidence=wanted.confidence)
    with in_section("xclp", *config.xclp):
        xclp_parameters = xclp.Parameters(num_classes=num_classes, **config.xclp)
    with in_section("per_client_lp", *config.per_client_lp):
        own_parameters = xclp.Parameters(num_classes=num_classes, **config.per_client_lp)
    sources = {
        "xclp": pseudo_label.xclp_labels(embed, xclp_parameters, execution),
        "per_client_lp": pseudo_label.per_client_lp_labels(embed, own_parameters, map_clients),
        "network": network,
        "teacher": pseudo_label.from_teacher(network),
    }
    if wanted.class_weights:
        for name, within_clients in (("xclp", False), ("per_client_lp", True)):
            sources[name] = pseudo_label.class_weighted(
                sources[name], num_classes, within_clients=within_clients
            )
    return {
        "none": pseudo_label.labeled_only(),
        "unlabeled": pseudo_label.with_unlabeled(),
        **sources,
    }


def _starts_from_state(config: ConfigDict) -> bool:
    return config.training.initial_model not in ("", PRETRAINED)


def repeats_that_differ(config: ConfigDict) -> range:
    """The repeats whose training starts from a state of their own; the first where all start alike."""
    return range(config.num_repeats if "{repeat}" in config.training.initial_model else 1)


def _initial_model(config: ConfigDict, model: Model, repeat: int) -> Any:
    """Weights released for ImageNet, or the state that an experiment left under DIR/states/NAME-REPEAT."""
    if _starts_from_state(config):
        template = jax.eval_shape(model.init, jax.random.key(0))
        with _naming_initial_model(config):
            state = _saved_model(config, repeat).state(template, part="model")
            _check_shapes(config, state, template)
        return state
    if config.training.initial_model != PRETRAINED:
        return None
    _pretrained_network(config)
    file = find_weights(
        config.model.name, config.preprocessing.weights or None, config.dataset.root or None
    )
    key = jax.random.fold_in(jax.random.key(config.seed + repeat), _HEAD)
    start = model.init(key)
    return read_weights(file, start, new_head=True)


def _saved_model(config: ConfigDict, repeat: int) -> Checkpoint:
    """The state that the config names for this repeat.

    Raises:
        UsageError: there is none, or it is of another network.
    """
    folder = Path(config.training.initial_model.replace("{repeat}", str(repeat))).expanduser()
    wanted = "give WORKDIR/states/NAME-{repeat}"
    if not folder.is_dir():
        raise UsageError(f"no such folder ({folder}); {wanted}")
    saved = Checkpoints(folder).latest()
    if saved is None:
        raise UsageError(f"{folder} holds no saved state; {wanted}")
    network = saved.progress.get("network", config.model.name)  # not all that leave states say it
    if network != config.model.name:
        raise UsageError(
            f"{folder} holds the network {network!r}, config.model.name is {config.model.name!r}"
        )
    return saved


@contextmanager
def _naming_initial_model(config: ConfigDict) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"config.training.initial_model={config.training.initial_model}: {error}"
        ) from error


def _check_shapes(config: ConfigDict, state: Any, template: Any) -> None:
    """Raise a UsageError if a leaf of the state is not as the config's model has it."""
    wanted = jax.tree.leaves(template)
    for (path, leaf), expected in zip(
        jax.tree_util.tree_leaves_with_path(state), wanted, strict=True
    ):
        if (leaf.shape, leaf.dtype) != (expected.shape, expected.dtype):
            raise UsageError(
                f"{jax.tree_util.keystr(path, simple=True, separator='.')} is {leaf.dtype}"
                f"{list(leaf.shape)} there, {expected.dtype}{list(expected.shape)} in "
                f"config.model.name={config.model.name!r} for this data"
            )
