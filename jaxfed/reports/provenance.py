"""Provenance of runs: command, settings off their defaults, data, seeds, commit and device."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config.base import get_config
from jaxfed.config.check import keys_seen_by
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import entries
from jaxfed.config.stored import GONE, restored
from jaxfed.experiment.store.records import Run
from jaxfed.reports.names import setting_text

# Shown elsewhere in a report, or without effect on results.
_LIKE_XCLP = ("per_client_lp", "pooled_lp")  # their settings follow XCLP's unless they are given
_SHOWN = ("algorithm", "baselines", "paper_table", "seed", "num_repeats", "execution", "deployment")


def provenance(runs: Sequence[Run], command: str = "") -> tuple[tuple[str, str], ...]:
    """Return the provenance of the runs, each value once: command, config, seeds, commit and device.

    The config has the settings off their defaults that a method reads and that are equal in all runs. A note
    on the data is included if their source has one (a JPEG copy, for example).
    """
    environments = [run.entry("environment", {}) for run in runs if run.finished]
    facts = {
        "command": command or _joined((e.get("command", "") for e in environments), "\n"),
        "config": _common_settings(runs),
        "data": _joined(run.entry("data_origin", "") for run in runs),
        "seeds": _joined(", ".join(map(str, _seeds(run))) for run in runs),
        "commit": _joined(map(_commit, environments)),
        "device": _joined(str(e.get("device", "")) for e in environments),
    }
    return tuple((k, v or "not recorded") for k, v in facts.items() if v or k != "data")


def _common_settings(runs: Sequence[Run]) -> str:
    common = []
    read = {key for run in runs for method in run.results for key in keys_read(run, method)}
    for key in dict.fromkeys(key for run in runs for key in run.settings if key in read):
        values = {setting_text(run.settings.get(key, "given")) for run in runs}
        if len(values) == 1 and values != {_defaults().get(key)}:
            common.append(f"{key}={values.pop()}")
    return ", ".join(common) or "the defaults"


@cache
def _defaults() -> dict[str, str]:
    of_methods = {entry.key: entry.default.strip("'") for entry in entries()}
    return of_methods | {key: setting_text(v) for key, v in flatten(get_config().to_dict())}


def keys_read(run: Run, method: str) -> Collection[str]:
    """Return the config keys of a run that a method reads, without those that a report shows elsewhere.

    A setting of XCLP's baselines that follows XCLP's is the key of the latter. Of a method that is not known
    here they are those in no other method's section.
    """
    if run.algorithm_of(method) in ALGORITHMS:
        config = restored(run.config)
        values = dict(flatten(config.to_dict()))
        read = keys_seen_by(config, method)
        for key in [*read]:
            section, _, leaf = key.partition(".")
            if section in _LIKE_XCLP and values.get(f"xclp.{leaf}") == values[key]:
                read = read - {key} | {f"xclp.{leaf}"}
    else:
        sections = {*ALGORITHMS} - {method, run.algorithm_of(method)}
        read = {key for key in run.settings if key.partition(".")[0] not in sections}
    audited = {key for key in run.settings if key.startswith("audit.")}
    return {k for k in read | audited if k.partition(".")[0] not in _SHOWN and k not in GONE}


def _seeds(run: Run) -> Iterable[int]:
    return (int(run.config.get("seed", 0)) + repeat for repeat in range(run.num_repeats))


def _commit(environment: Mapping[str, Any]) -> str:
    commit = (environment.get("commit") or "")[:12]
    return commit + " with uncommitted changes" * bool(commit and environment.get("dirty"))


def _joined(texts: Iterable[str], by: str = "; ") -> str:
    return by.join(dict.fromkeys(filter(None, texts)))
