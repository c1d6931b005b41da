"""Exact statistics of clients' rows, which preprocessing computes without noise, and who learns them.

    lines(config, dataset, num_public)     # at the start of a run, and in its report
    check_private(config, dataset)         # methods with a guarantee refuse them

On a network each client sends its sums for these statistics. A model contains the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.build.networks import scales_by_clients, starts_from_state
from jaxfed.data import Dataset
from jaxfed.data.readers.tables.encoder import TableEncoder
from jaxfed.errors import UsageError

_VALIDATION = "dataset.validation_fraction"


class Statistic(NamedTuple):
    """Statistics of clients' rows that a key causes.

    Fields:
        key: key of the config.
        value: its value.
        what: the statistics, in words.
        instead: what to write to avoid them; "": they are allowed, and an epsilon does not cover them.
    """

    key: str
    value: object
    what: str
    instead: str = ""


def statistics(config: ConfigDict, dataset: Dataset) -> Iterator[Statistic]:
    """Yield the statistics that all methods of a run depend on."""
    wanted, name, key = config.preprocessing, config.dataset.name, "preprocessing.kind"
    encoder, share = dataset.encoder, config.dataset.validation_fraction
    if wanted.kind == "standardized":
        what = "exact means and deviations of all features over all clients' rows"
        instead = "use 'identity'; its network scales by public examples (federation.public_size)"
        yield Statistic(key, wanted.kind, what, instead)
    if wanted.kind == "federated_features":
        yield Statistic(key, wanted.kind, "a model trained on clients' labels", "use 'pretrained'")
    if wanted.components:
        what = "exact principal components of the features of all clients' rows"
        yield Statistic("preprocessing.components", wanted.components, what, "use 0")
    if dataset.gaps is not None and dataset.gaps.columns:
        what = "exact medians, over all clients' rows, of columns in which numbers are missing"
        instead = "fill the missing values in the data with public numbers"
        yield Statistic("dataset.name", name, what, instead)
    if isinstance(encoder, TableEncoder) and any(column.texts for column in encoder.columns):
        yield Statistic("dataset.name", name, "which texts occur in columns of texts")
    if share:
        yield Statistic(_VALIDATION, share, "which state does best on the validation examples")


def lines(config: ConfigDict, dataset: Dataset, num_public: int) -> list[str]:
    """Return a line for each kind of statistics, with who learns it; `input_lines` come last."""
    found = list(statistics(config, dataset))
    made = [
        f"{one.key}={one.value!r}: the server and all clients learn {one.what}"
        for one in found
        if one.key != _VALIDATION  # no client's examples
    ]
    return made + input_lines(config, num_public, [one.key for one in found])


def input_lines(config: ConfigDict, num_public: int, left_out: Sequence[str] = ()) -> list[str]:
    """Return lines on the data that scale the inputs of networks.

    `left_out` are the keys of statistics that a method's epsilon does not cover.
    """
    chosen, found = methods.chosen(config), []
    if scaled := [name for name in chosen if scales_by_clients(config, name)]:
        found.append(
            f"inputs of networks ({', '.join(scaled)}): the server and all clients learn exact means and "
            "deviations over all clients' rows"
        )
    by = f"scaled by the {num_public:,} public examples" if num_public else "not scaled by data"
    for name in _private(config):
        seen = methods.with_own_training(config, name)
        started = ["training.initial_model"] * starts_from_state(seen)
        not_covered = ", ".join([*left_out, *started, "losses", "accuracies"])
        found.append(
            f"{name}: inputs of its network are {by}; its epsilon does not cover {not_covered}"
        )
    return found


def check_private(config: ConfigDict, dataset: Dataset) -> None:
    """Check that no method with a guarantee for clients' rows depends on exact statistics of them.

    Raises:
        UsageError: one does.
    """
    avoidable = [one for one in statistics(config, dataset) if one.instead]
    for name in _private(config) if avoidable else ():
        raise UsageError(
            f"reveals {avoidable[0].what}, which the epsilon of {name!r} does not cover",
            key=f"config.{avoidable[0].key}",
            value=avoidable[0].value,
            allowed=avoidable[0].instead,
        )


def _private(config: ConfigDict) -> list[str]:
    return [name for name in methods.chosen(config) if methods.needs(config, name).private]
