"""Files that results depend on: released weights, states of earlier experiments, a table of availability.

An unfinished run resumes only if these files are unchanged (`Simulation.data_checksums`). Otherwise features
computed again, or later repeats, would come from other weights than the existing results.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.build.networks import (
    PRETRAINED,
    naming_initial_model,
    repeats_that_differ,
    saved_model,
    starts_from_state,
)
from jaxfed.errors import UsageError
from jaxfed.federation.clock.settings import BUILT_IN
from jaxfed.host.location import location
from jaxfed.host.storage import file_checksum
from jaxfed.models.pretrained import find_weights


def weights_checksums(config: ConfigDict) -> dict[str, str]:
    """Return config key (with the repeat, for states) -> size and checksum of each file in use.

    Raises:
        UsageError: a file is missing.

    Cost: each file is read once, 1 GB/s.
    """
    return {key: file_checksum(file) for key, file in _files(config)}


def _files(config: ConfigDict) -> Iterator[tuple[str, Path]]:
    if config.clock.availability not in BUILT_IN:
        key = "config.clock.availability"
        table = location(config.clock.availability, key)
        if not table.is_file():
            raise UsageError("no such file", key=key, value=config.clock.availability)
        yield "clock.availability", table
    kind, weights = config.preprocessing.kind, config.preprocessing.weights or None
    root = config.dataset.root or None
    if kind == "pretrained":
        yield "preprocessing.weights", find_weights(config.preprocessing.network, weights, root)
    seen = {
        methods.training_key(config, name, "initial_model"): methods.with_own_training(config, name)
        for name in methods.chosen(config)
        if methods.uses_training(config, name)
    }
    if kind == "federated_features":
        seen["training.initial_model"] = config
    for key, own in seen.items():
        if own.training.initial_model == PRETRAINED:
            yield key, find_weights(own.model.name, weights, root)
        elif starts_from_state(own):
            with naming_initial_model(own):
                for repeat in repeats_that_differ(own):
                    yield f"{key} of repeat {repeat}", saved_model(own, repeat).file
