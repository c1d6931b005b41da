"""A config from the config.json of a workdir, also of an earlier version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

# Keys of a release or of a committed result that are gone, with the value that is now the only one.
GONE: dict[str, Any] = {
    "labeled_cohorts": True,
    "labeled_share": "ceiling",
    "clock.over_selection": 1.0,
    "deployment.nodes": None,
    "deployment.retries": 1,
    "dp_fedavg.bound": "fixed",
    "dp_fedavg_records.chunk": 16,
    "dp_fedavg_records.records": "poisson",
    "execution.chunk_size": 0,
    "execution.convolution": "auto",
    "execution.memory_limit": None,
    "federation.dirichlet_share": 0.9,
    "federation.public_dataset": "",
    "federation.public_fraction": 0.0,
    "federation.quantity": "default",
    "federation.quantity_parameter": 1.0,
    "fedct.ties": "smallest",
    "fedct.weights": "one",
    "fedmatch.psi_scale": 0.2,
    "fedrgd.self_training": False,
    "fedsiam.consistency": "mse",
    "fedsiam.upload_quantile": 0.0,
    "fedsiam.upload_rounds": 3,
    "mixmatch.mu": 0.0,
    "model.groups": 32,
    "per_client_lp.self_edges": False,
    "pooled_lp.self_edges": False,
    "preprocessing.batch_size": 0,
    "preprocessing.weights": "",
    "pseudo_label.safeguard": "none",
    "scaffold.option": "II",
    "selection.folds": 5,
    "training.training_cohort_size": 0,
    "xclp.mask_partners": 0,
    "xclp.neighbors": "exact",
    "xclp.self_edges": False,
    "xclp_head.mask_partners": 0,
}
INSTEAD = {  # keys that do now what some of these did
    "deployment.nodes": "federation.num_clients",
    "federation.public_fraction": "federation.public_size",
    "preprocessing.weights": "dataset.root",
}
# Keys that configs of earlier versions lack -> the value of those runs.
ADDED: dict[str, Any] = {
    "dataset.test_rows": "shared",
    "training.sums": "plaintext",
    "training.presence": (),
}


def restored(stored: Mapping[str, Any]) -> ConfigDict:
    """Return the config that was written as JSON: lists are tuples, references between keys are resolved.

    Keys that an older version did not write have the values that its runs had: `ADDED`, else their defaults.
    """
    from jaxfed.config import base  # methods and their settings; a workdir is read without them

    config = base.get_config()
    config.update_from_flattened_dict(ADDED)
    with config.unlocked(), config.ignore_type():
        if "candidates" in stored.get("selection", {}):
            config.selection.candidates = ConfigDict()  # the stored ones replace those of the base
        config.update(ConfigDict(with_tuples(stored)))
    resolved = config.copy_and_resolve_references()
    resolved.lock()
    return resolved


def without_gone(config: Any) -> Any:
    """Delete the keys that are gone from the content of a config.json, and return it."""
    for key, only in GONE.items():
        section, _, name = key.rpartition(".")
        settings = (
            (config.get(section) if section else config) if isinstance(config, dict) else None
        )
        if isinstance(settings, dict) and name in settings and settings[name] == only:
            del settings[name]
            if not settings:
                del config[section]
    return config


def with_tuples(value: Any) -> Any:
    """Return a value of JSON, which has lists where configs have tuples, as configs have it."""
    if isinstance(value, Mapping):
        return {key: with_tuples(each) for key, each in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value
