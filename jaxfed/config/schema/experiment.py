"""Settings of an experiment as a whole: methods, rounds, selection, audits, execution, deployment."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any, get_args

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config.build.assembly import SETTINGS
from jaxfed.config.deployment import Deployment
from jaxfed.config.schema.docstrings import meanings
from jaxfed.config.schema.setting import SWITCH, Setting, are_texts, in_section
from jaxfed.federation.clock.settings import Clock
from jaxfed.federation.execution import memory_limit
from jaxfed.federation.execution.client_map import STRATEGIES
from jaxfed.federation.sampling import SAMPLINGS
from jaxfed.models.layers import Convolution
from jaxfed.models.wrapping import DTYPES
from jaxfed.paper_numbers import PAPER_TABLES
from jaxfed.rules import Rule, at_least, one_of, rules_of_fields
from jaxfed.xclp.settings.candidates import MEASURES


def method_rules(names: Collection[str]) -> dict[str, Rule]:
    """Return the rules of the two keys that name methods: algorithms, and variants of the config."""
    different = f"different names out of {', '.join(map(repr, names))}"

    def are_methods(value: tuple[str, ...]) -> bool:
        return are_texts(value) and len(set(value)) == len(value) and set(value) <= set(names)

    return {
        "algorithm": one_of(names),
        "baselines": Rule(tuple, different, are_methods, names),
    }


_METHODS = method_rules(ALGORITHMS)
EXPERIMENT = {
    "seed": Setting(
        0,
        Rule(int, "integers from 0 to 2147483647", lambda value: 0 <= value < 2**31),
        "seed of the first repeat; repeat i has seed + i",
    ),
    "num_repeats": Setting(5, at_least(1), "number of repeats, each with a seed of its own"),
    "algorithm": Setting("xclp", _METHODS["algorithm"], "main method"),
    "baselines": Setting(
        ("per_client_lp", "pooled_lp", "client_knn"),
        _METHODS["baselines"],
        "methods to compare with, on the same clients",
    ),
    "rounds": Setting(
        1,
        at_least(1),
        "number of rounds; a one-shot method over all clients always has one",
    ),
    "cohort_size": Setting(
        0, at_least(0, ", 0 is all clients"), "clients that take part in a round"
    ),
    "sampling": Setting(
        "uniform",
        one_of(SAMPLINGS),
        "how a round's clients are drawn; 'proportional': clients with and without labels by their shares, "
        "and only clients with labels where others would be idle (rounds on given labels, per-client LP)",
    ),
    "evaluate_every": Setting(
        0, at_least(0, ", 0 is after the last round only"), "rounds between evaluations"
    ),
    "evaluate_test": Setting(
        False, SWITCH, "evaluate the test set at these rounds too, for curves; it selects nothing"
    ),
    "checkpoint_every": Setting(
        0,
        at_least(0, ", 0 is by the clock"),
        "rounds between checkpoints; by the clock they take at most 3 % of the time",
    ),
    "paper_table": Setting(
        "", one_of(["", *PAPER_TABLES]), "table of a paper to print beside the results"
    ),
}
SELECTION = in_section(
    "selection",
    {
        "settings": Setting(
            "given",
            one_of(SETTINGS),
            "settings of one-shot methods: as given, or cross-validated over the labeled points",
        ),
        "folds": Setting(5, at_least(2), "number of folds of the cross-validation"),
        "measure": Setting("accuracy", one_of(MEASURES), "what cross-validation maximizes"),
    },
)
AUDIT = in_section(
    "audit",
    {
        "rounds": Setting(
            (),
            Rule(
                tuple,
                "integers from 1 on, or () for the last round",
                lambda value: all(type(number) is int and number >= 1 for number in value),
            ),
            "rounds whose messages are attacked; (): the last",
        ),
        "members": Setting(
            0,
            at_least(0, ", 0 is all of a client's labels"),
            "labeled examples of each client whose membership is inferred",
        ),
        "population": Setting(
            200, at_least(1), "held-out examples that the attacker knows as non-members"
        ),
        "shadows": Setting(
            64,
            Rule(int, "0 for none, or integers from 4 on", lambda v: v == 0 or v >= 4),
            "number of shadow models that the attacker trains; 0: none",
        ),
    },
)
EXECUTION = in_section(
    "execution",
    {
        "strategy": Setting(
            "auto",
            one_of(["auto", *STRATEGIES]),
            "how clients are mapped to devices; 'shard_map': over all devices, with XCLP's graph",
        ),
        "chunk_size": Setting(
            0,
            at_least(0, ", 0 is one client"),
            "clients computed together in the loop over clients",
        ),
        "convolution": Setting("auto", one_of(get_args(Convolution)), "convolution algorithm"),
        "precision": Setting("float32", one_of(DTYPES), "type that networks compute in"),
        "workers": Setting(
            0,
            Rule(int, "integers from 0 to 1024, 0 is none", lambda n: 0 <= n <= 1024),
            "processes for xclp.hamming='phe' and for fitting estimators; 0: none",
        ),
        "memory_limit": Setting(
            None,
            memory_limit.RULE,
            "limit of a step's device memory, and of per-client states in host memory: bytes, or text "
            "such as '4 GiB'; None: all there is",
        ),
        "compilation_cache": Setting(
            "auto",
            Rule(str, "'auto', 'off' or a folder", bool),
            "folder of compiled programs, 'auto' or 'off'",
        ),
        "plots": Setting(True, SWITCH, "draw plots at the end; launch.report draws them as well"),
    },
)


def _of_fields(section: str, settings: Any) -> dict[str, Setting]:
    """Return the settings that are the fields of a dataclass with `rules`."""
    return in_section(
        section,
        {
            field.name: Setting(
                field.default,
                rules_of_fields(settings)[field.name],
                meanings(settings)[field.name].rstrip("."),
            )
            for field in fields(settings)
        },
    )


CLOCK = _of_fields("clock", Clock)
DEPLOYMENT = _of_fields("deployment", Deployment)
