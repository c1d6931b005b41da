"""Provenance of runs: command, settings relevant to their methods, data, seeds, commit and device."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxfed.experiment.store.records import Run
from jaxfed.reports.tables.display_names import setting_text

# The first of these keys that is not 0 counts (`jaxfed.config.data.simulation`).
_LABELS = ("federation.labeled_per_class", "federation.num_labeled", "federation.labeled_fraction")
_PROBLEM = (
    *("dataset.name", "preprocessing.kind", "federation.num_clients", "federation.partition"),
    *_LABELS,
)
_TRAINING = (
    *("training.optimizer", "training.learning_rate", "training.epochs", "training.batch_size"),
    *("training.server_optimizer", "training.server_learning_rate", "training.initial_model"),
)
# Labeler, also the name of its config section -> its relevant settings.
_LABELERS = {
    "xclp": ("num_bits", "num_neighbors", "alpha"),
    "per_client_lp": ("num_neighbors", "alpha"),
    "pooled_lp": ("num_neighbors", "alpha"),
    "client_knn": ("num_neighbors",),
}


def provenance(runs: Sequence[Run], command: str = "") -> tuple[tuple[str, str], ...]:
    """Return the provenance of the runs, each value once: command, config, seeds, commit and device.

    A note on the data is included if their source has one (a JPEG copy, for example).
    """
    environments = [run.environment for run in runs if run.finished]
    commands = [command] if command else [e["command"] for e in environments if "command" in e]
    origins = _joined(run.origin for run in runs if run.finished)
    facts = {
        "command": "\n".join(dict.fromkeys(commands)),
        "config": _common_settings(runs),
        **({"data": origins} if origins else {}),
        "seeds": "; ".join(dict.fromkeys(map(_seeds, runs))),
        "commit": _joined(map(_commit, environments)),
        "device": _joined(str(e.get("device", "")) for e in environments),
    }
    return tuple((name, text or "not recorded") for name, text in facts.items())


def _common_settings(runs: Sequence[Run]) -> str:
    """Return the settings that are relevant to the runs' methods and equal in all runs."""
    common = []
    for key in dict.fromkeys(key for run in runs for key in _keys_that_matter(run)):
        values = {setting_text(run.settings[key]) for run in runs if key in run.settings}
        counts = key not in _LABELS or all(key == _labels_key(run) for run in runs)
        if counts and len(values) == 1 and values.isdisjoint({"given", "none"}):
            common.append(f"{key}={values.pop()}")
    return ", ".join(common)


def _keys_that_matter(run: Run) -> Iterator[str]:
    """Yield relevant keys: of the problem, of training if a model is trained, of graphs, of each method."""
    trained = [name for name, metrics in run.results.items() if "train_loss" in metrics]
    learns_features = run.settings.get("preprocessing.kind") == "federated_features"
    yield from _PROBLEM
    if learns_features:
        yield from ("preprocessing.rounds", "preprocessing.cohort_size")
    if trained:
        yield from ("rounds", "cohort_size")
    if trained or learns_features:
        yield "model.name"
        steps = run.settings.get("training.local_steps")
        yield from (
            "training.local_steps" if steps and "epochs" in key else key for key in _TRAINING
        )
    yield "selection.settings"
    for name in run.results:
        yield from _keys_of(run, name, is_trained=name in trained)


def _keys_of(run: Run, name: str, *, is_trained: bool) -> Iterator[str]:
    """Yield the keys of a method's section; for a one-shot method those of its labeling.

    Label-propagation baselines inherit settings from XCLP; inherited ones are not repeated.
    """
    algorithm = run.settings.get(f"{name}.algorithm", name)
    if is_trained:
        labeler = run.settings.get(f"{name}.pseudo_label", algorithm.removeprefix("fedavg_"))
        yield from _labeler_keys(run, labeler)
    elif algorithm == name:
        yield from _labeler_keys(run, name)
    if is_trained or algorithm != name:
        yield from (key for key in run.settings if key.startswith(f"{name}."))


def _labeler_keys(run: Run, labeler: str) -> Iterator[str]:
    for leaf in _LABELERS.get(labeler, ()):
        key = f"{labeler}.{leaf}"
        follows = labeler in ("per_client_lp", "pooled_lp")
        if not follows or run.settings.get(key) != run.settings.get(f"xclp.{leaf}"):
            yield key
        elif "xclp" not in run.results:
            yield f"xclp.{leaf}"


def _labels_key(run: Run) -> str:
    """Return the key that sets the number of labels; the others are ignored."""
    return next((key for key in _LABELS if run.settings.get(key)), _LABELS[-1])


def _seeds(run: Run) -> str:
    first = int(run.config.get("seed", 0))
    return ", ".join(str(first + repeat) for repeat in range(run.num_repeats))


def _commit(environment: Mapping[str, Any]) -> str:
    commit = environment.get("commit")
    if not commit:
        return ""
    return f"{commit[:12]}{' with uncommitted changes' if environment.get('dirty') else ''}"


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))
