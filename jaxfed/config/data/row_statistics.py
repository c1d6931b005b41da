"""Exact statistics of clients' rows, which preprocessing computes without noise, and who learns them.

    lines(config, dataset, num_public)     # at the start of a run, and in its report
    check_private(config, dataset)         # methods with a guarantee refuse them

On a network each client sends its sums for these statistics. A model contains the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.build.networks import scales_by_clients, starts_from_state
from jaxfed.config.keys import flatten, refused
from jaxfed.data import Dataset
from jaxfed.data.readers.table_encoder import TableEncoder

_VALIDATION = "dataset.validation_fraction"


def _statistics(config: ConfigDict, dataset: Dataset) -> Iterator[tuple[str, str, str]]:
    """Yield the key that causes each kind of statistics, these in words, and what to write to avoid them.

    If the last is empty the statistics are allowed, and no epsilon covers them.
    """
    wanted, encoder = config.preprocessing, dataset.encoder
    if wanted.kind == "standardized":
        yield (
            "preprocessing.kind",
            "exact means and deviations of all features over all clients' rows",
            "use 'identity'; its network scales by public examples (federation.public_size)",
        )
    if wanted.kind == "federated_features":
        yield "preprocessing.kind", "a model trained on clients' labels", "use 'pretrained'"
    if wanted.components:
        what = "exact principal components of the features of all clients' rows"
        yield "preprocessing.components", what, "use 0"
    if dataset.has_gaps:
        what = "exact medians, over all clients' rows, of columns in which numbers are missing"
        yield "dataset.name", what, "fill the missing values in the data with public numbers"
    if isinstance(encoder, TableEncoder) and any(column.texts for column in encoder.columns):
        yield "dataset.name", "which texts occur in columns of texts", ""
    if config.dataset.validation_fraction:
        yield _VALIDATION, "which state does best on the validation examples", ""


def lines(config: ConfigDict, dataset: Dataset, num_public: int) -> list[str]:
    """Return a line for each kind of statistics, with who learns it; `input_lines` come last."""
    found, given = list(_statistics(config, dataset)), dict(flatten(config.to_dict()))
    made = [
        f"{key}={given[key]!r}: the server and all clients learn {what}"
        for key, what, _ in found
        if key != _VALIDATION  # no client's examples
    ]
    return made + input_lines(config, num_public, [key for key, *_ in found])


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
        is_started = starts_from_state(methods.with_own_training(config, name))
        started = ["training.initial_model"] * is_started
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
    for key, what, instead in _statistics(config, dataset):
        for name in _private(config) if instead else ():
            wrong = f"reveals {what}, which the epsilon of {name!r} does not cover"
            raise refused(config, key, wrong, instead)


def _private(config: ConfigDict) -> list[str]:
    return [name for name in methods.chosen(config) if methods.needs(config, name).private]
