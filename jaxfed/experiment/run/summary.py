"""Summary of an experiment from the lines of metrics.jsonl: final metrics and failed methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.keys import flatten
from jaxfed.experiment.store.records import measure
from jaxfed.experiment.store.workdir import plain
from jaxfed.federation.algorithm import HAS_NO_MODEL

Record = dict[str, Any]  # one line of metrics.jsonl


def divergence(config: ConfigDict, record: Record) -> str:
    """Return the message for a round in which a method diverged and stopped."""
    key = methods.training_key(config, record["algorithm"], "learning_rate")
    return (
        f"{record['algorithm']} diverged in repeat {record['repeat'] + 1}, round {record['round']}, at a "
        f"learning rate of {float(record['learning_rate']):g}: its loss is not finite; lower "
        f"config.{key}"
    )


def failure(config: ConfigDict, record: Record) -> str:
    """Return the message for a last round after which no client has a model, or in which every fit failed.

    Returns "" otherwise, also if only some clients failed or only some took part.
    """
    has_all = config.cohort_size in (0, config.federation.num_clients)
    fault = "has no model"
    if not record.get(HAS_NO_MODEL):
        has_failed = has_all and record.get("failed_clients") and record.get("clients") == 0
        fault = "failed at every client" if has_failed else ""
    if not fault or record["round"] != config.rounds:
        return ""
    where = f"in repeat {record['repeat'] + 1} after round {record['round']}"
    return f"{record['algorithm']} {fault} {where}: the warnings say why"


def _by_run(records: Iterable[Record]) -> dict[tuple[str, int], list[Record]]:
    """Return method and repeat -> its records."""
    runs: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        runs.setdefault((record["algorithm"], record["repeat"]), []).append(record)
    return runs


def remarks(config: ConfigDict, records: Iterable[Record]) -> list[str]:
    """Return a line for each method whose result does not depend on its characteristic step."""
    repeats_of: dict[tuple[str, str], list[int]] = {}
    for (name, repeat), of_one in _by_run(records).items():
        if reason := _undone(config, name, of_one):
            repeats_of.setdefault((name, reason), []).append(repeat + 1)
    return [
        f"{name} in repeat{'s' if len(repeats) > 1 else ''} {', '.join(map(str, repeats))}: {reason}"
        for (name, reason), repeats in repeats_of.items()
    ]


def _undone(config: ConfigDict, name: str, records: list[Record]) -> str:
    """Return why one repeat's final state does not depend on the method's characteristic step, else ""."""
    selected = records[-1].get("selected_round")
    if selected == 0:
        return "validation selected the state that it started from, so its rounds count for nothing"
    first = 1 + methods.with_own_training(config, name).training.labeled_only_rounds
    if any("pseudo_labeled" in record for record in records):
        labeling = [r["round"] for r in records if r.get("pseudo_label_weight", 0) > 0]
        if not labeling:
            return (
                "no round gave a pseudo-label any weight, so it trained on given labels alone; surer ones "
                "need more rounds or more labels"
            )
        first = labeling[0]
    elif methods.needs(config, name).pseudo_label == "none":
        return ""
    if selected is not None and selected < first:
        return (
            f"validation selected a state from before its first pseudo-labels (round {first}), "
            "which knows given labels alone"
        )
    return ""


def complaints(summary: Mapping[str, Any]) -> list[str]:
    """Return the summary's lines on methods that diverged or failed."""
    return [*summary.get("diverged", ()), *summary.get("failed", ())]


def summarize(config: ConfigDict, records: Iterable[Record]) -> dict[str, Any]:
    """Return the final metrics, from the lines of metrics.jsonl alone.

    A method's metrics in one repeat are those of its last round; seconds and bytes are summed.
    `algorithms`: method -> metric -> {mean, std, values}, over repeats, std with divisor n - 1 (None for one
    repeat), nested as the metrics are. At the top level, for `config.algorithm`: each `test_` metric's mean
    and `..._std`, `communication`'s mean bytes; `seconds` of all rounds of all methods; lines of `diverged`,
    `failed` and `remarks` if there are any.
    """
    records = list(records)
    finals: dict[str, list[dict[str, Any]]] = {}
    for (name, _), of_one in _by_run(records).items():
        finals.setdefault(name, []).append(reduce(accumulated, of_one, {}))
    algorithms = {name: _over_repeats(repeats) for name, repeats in finals.items()}
    main = algorithms[config.algorithm]
    summary: dict[str, Any] = {"algorithm": config.algorithm, "num_repeats": config.num_repeats}
    for metric in (name for name in main if name.startswith("test_")):
        summary |= {metric: main[metric]["mean"], f"{metric}_std": main[metric]["std"]}
    summary["seconds"] = sum(sum(metrics["seconds"]["values"]) for metrics in algorithms.values())
    if "communication" in main:
        summary["communication"] = {
            name: main["communication"][name]["mean"] for name in ("upload_bytes", "download_bytes")
        }
    lines = {
        "diverged": [divergence(config, record) for record in records if "diverged" in record],
        "remarks": remarks(config, records),
        "failed": [line for record in records if (line := failure(config, record))],
    }
    return {
        **summary,
        **{key: each for key, each in lines.items() if each},
        "algorithms": algorithms,
    }


def accumulated(so_far: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """Return a method's flat metrics after one more round: seconds and bytes are summed, others replaced."""
    metrics = {
        name: value
        for name, value in flatten(record)
        if name not in ("repeat", "algorithm", "round", "diverged", HAS_NO_MODEL)
        and value != {}
        and not isinstance(value, list)  # per-client values
    }
    sums = {  # over every kind of message in this round or earlier ones
        name: so_far.get(name, 0) + metrics.get(name, 0)
        for name in {**so_far, **metrics}
        if name == "seconds" or name.startswith("communication.")
    }
    return metrics | sums


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the defined numbers of a line of metrics.jsonl; nested names are joined by slashes."""
    return {
        name.replace(".", "/"): float(value)
        for name, value in flatten(plain(record))
        if isinstance(value, int | float) and name not in ("repeat", "round")
    }


def _over_repeats(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """Return metric -> {mean, std, values}, nested by the dots in the metrics' names."""
    nested: dict[str, Any] = {}
    for metric in dict.fromkeys(name for metrics in repeats for name in metrics):
        *parents, name = metric.split(".")
        section = nested
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = _measured([metrics.get(metric) for metrics in repeats])
    return nested


def _measured(values: list[float | None]) -> dict[str, Any]:
    """Return mean and deviation; None if a repeat has no value (an accuracy over no points, for example)."""
    known = [value for value in values if value is not None]
    mean, std = measure(known)[:2] if len(known) == len(values) else (None, None)
    return {"mean": mean, "std": std, "values": values}
