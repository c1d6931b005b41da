"""Base of every config file, and the variants that every config accepts.

A config file starts from `get_config()`, sets its own values, and ends with `apply_variants`. All keys, with
defaults, allowed values and meanings: `docs/keys.md`, or `python -m launch.run --help_keys`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config.sections import SECTIONS, shared_settings
from jaxfed.errors import UsageError, did_you_mean, nearest
from jaxfed.federation.method import completed
from jaxfed.settings import settings_of
from jaxfed.xclp import Parameters

Variant = Callable[[ConfigDict], None]
Add = Callable[..., None]

# Sizes that a config sets for its own data set. With another `--config.dataset.name`, sizes that are not
# overridden have these values instead, except that of public examples.
SIZES_OF_A_SET: dict[str, Any] = {
    key: shared_settings()[key].default
    for key in (
        *("dataset.train_size", "dataset.test_size", "dataset.unlabeled_size", "dataset.balanced"),
        "dataset.test_rows",
        *("federation.num_labeled", "federation.own_size"),
        *("audit.members", "audit.population", "paper_table"),
    )
}


def get_config() -> ConfigDict:
    """XCLP and its Section 4.1 baselines on no data set yet."""
    config = ConfigDict()
    for name, kind in SECTIONS.items():
        defaults = {key: one.default for key, one in settings_of(kind).items()}
        config.update({name: defaults} if name else defaults)
    # Methods that train use this section for pseudo-labels too, so it has the fields of `Parameters` alone.
    labeling = settings_of(Parameters)
    from_run = ("num_classes", "seed")
    config.xclp = {key: one.default for key, one in labeling.items() if key not in from_run}
    for name in ("per_client_lp", "pooled_lp", "client_knn"):
        config[name] = completed(ALGORITHMS[name], {})
    for name in ("per_client_lp", "pooled_lp"):  # follow XCLP's settings unless they have their own
        for key in config[name]:
            config[name][key] = config.xclp.get_oneway_ref(key)
    # In addition to the given value; () = it alone. Keys in a method's `select` are chosen by leave-one-out.
    alphas = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)  # the paper's is 0.99
    config.selection.candidates = {
        "xclp": {"num_bits": (), "num_neighbors": (), "alpha": alphas},
        "per_client_lp": {"num_neighbors": (), "alpha": alphas},
        "pooled_lp": {"num_neighbors": (), "alpha": alphas},
        "client_knn": {"num_neighbors": (1, 3, 5, 10, 20)},
    }
    return config


def smoke(config: ConfigDict) -> None:
    """A small trial run: under a minute on two cores."""
    config.num_repeats = 2
    config.rounds = min(config.rounds, 2)


def tuned(config: ConfigDict) -> None:
    """Choose settings of each one-shot labeling method separately, without test labels."""
    config.selection.settings = "cross_validated"


def auto(config: ConfigDict) -> None:
    """XCLP and label propagation with settings chosen by leave-one-out; fixed ones suit few labels."""
    config.xclp.label_matrix = "class_balanced"
    config.xclp.alpha = 0.95
    config.xclp.select = ("alpha", "label_matrix:plain:class_balanced", "client_prior")


def beside_auto(config: ConfigDict, names: Collection[str]) -> None:
    """Add a row `NAME_auto` for each of these methods, with the settings of `auto`."""
    chosen = ConfigDict({"xclp": {}})
    auto(chosen)
    for name in names:
        config[f"{name}_auto"] = ConfigDict({"algorithm": name, **chosen.xclp})


def beside_tuned(add: Add, variant: str) -> Add:
    """Return `add`; with the variant `tuned`, one that adds every point twice, given settings first."""
    if "tuned" not in variant.split(","):
        return add

    def add_both(**point: Any) -> None:
        for settings in ("given", "cross_validated"):
            add(**point, **{"selection.settings": settings})

    return add_both


def apply_variants(
    config: ConfigDict,
    variant: str,
    file_variants: Mapping[str, Variant] | None = None,
    exclusive: Collection[Collection[str]] = (),
) -> ConfigDict:
    """Apply a comma-separated list of variants to the config, in the file's order, and return it.

    `file_variants` are the file's, which come before the shared `tuned`, `auto` and `smoke` or replace them;
    `exclusive` are groups of mutually exclusive ones.
    """
    variants = dict(file_variants or {})
    for shared in (tuned, auto, smoke):
        variants.setdefault(shared.__name__, shared)
    names = [name for name in variant.split(",") if name]
    for name in names:
        if name not in variants:
            near = did_you_mean(nearest(name, variants)) or f"; known are {', '.join(variants)}"
            raise UsageError(f"--config=...:{variant}: no variant {name!r}{near}")
    for group in (*exclusive, ("tuned", "auto")):
        rivals = [name for name in dict.fromkeys(names) if name in group]
        if len(rivals) > 1:
            raise UsageError(
                f"--config=...:{variant}: the variants {' and '.join(rivals)} exclude each other; "
                "keep one of them"
            )
    for name, change in variants.items():
        if name in names:
            change(config)
    return config
