"""Wrong values of every key of a config, and values that do not go together, for `compare_settings.py`.

Keys are those of docs/keys.md at commit `BASE`, so that every checkout is asked the same.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BASE = "144f434140"
CONFIGS = "ml_collections_configs"
AT_SERVER = ("semifl", "fl2", "fedcon")  # methods that need labels at the server


def at_base(*arguments: str) -> str:
    """Return the output of a git command in the current folder's repository."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def as_text(key: str, value: Any) -> str:
    """Return an override as the command line has it."""
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    return f"{key}={tuple(value)!r}" if isinstance(value, list | tuple) else f"{key}={value}"


# A config file whose variant names a shipped one, with the keys of a JSON file assigned. Assigned values have
# any type; an override is parsed by the key's type.
_ASSIGNING = """
import json
from pathlib import Path

from ml_collections import ConfigDict

from {module} import load_module


def get_config(variant):
    config = load_module("{configs}/" + variant).get_config()
    for key, value in json.loads(Path("{values}").read_text()):
        *parents, leaf = key.split(".")
        section = config
        for parent in parents:
            with section.unlocked():
                section[parent] = section.get(parent, ConfigDict())
            section = section[parent]
        is_tuple = isinstance(value, dict)
        with section.ignore_type(), section.unlocked():
            section[leaf] = tuple(value["tuple"]) if is_tuple else value
    return config
"""


@contextmanager
def assigning_config(
    module: str,
) -> Iterator[tuple[str, Callable[[Sequence[tuple[str, Any]]], None]]]:
    """Yield the path of a config file, and a function of the (key, value) that it assigns.

    Args:
        module: that has `load_module`.
    """
    with tempfile.TemporaryDirectory() as folder:
        file, values = Path(folder) / "assigning.py", Path(folder) / "values.json"
        file.write_text(_ASSIGNING.format(module=module, configs=CONFIGS, values=values))

        def assign(assigned: Sequence[tuple[str, Any]]) -> None:
            plain = [
                (key, {"tuple": value} if isinstance(value, tuple) else value)
                for key, value in assigned
            ]
            values.write_text(json.dumps(plain))

        yield str(file), assign


def documented_keys() -> list[tuple[str, Any, str, str]]:
    """Return (key, default, allowed, meaning) of every row of `BASE`'s docs/keys.md."""
    found = []
    for row in at_base("show", f"{BASE}:docs/keys.md").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        if len(cells) == 4 and cells[0].startswith("`"):
            key, default = cells[0].strip("`"), cells[1].strip("`")
            value = None if default == "needed" else ast.literal_eval(default)
            found.append((key, value, cells[2], cells[3]))
    return found


def method_overrides(method: str) -> tuple[str, ...]:
    """Return overrides of `DIGITS` with which a method is accepted."""
    found = [f"algorithm={method}", "baselines="]
    if method in ("xclp", "per_client_lp", "pooled_lp", "client_knn", "network"):
        return tuple(found)
    found += ["preprocessing.kind=images", "federation.public_fraction=0.5"]
    found += ["training.strong_augmentation=translate:1"]
    if method in AT_SERVER:
        found.append("federation.labels_at=server")
    return tuple(found)


DIGITS = "xclp_digits.py"


def overrides_for(key: str, meaning: str, methods: Sequence[str]) -> tuple[str, ...]:
    """Return overrides with which a key is in effect."""
    section = key.rpartition(".")[0]
    if section in methods:
        return method_overrides(section)
    if section.startswith("learner."):
        learner = section.removeprefix("learner.")
        named = ("learner.estimator.estimator=sklearn.svm.SVC",) * (learner == "estimator")
        return (*method_overrides("fedct"), f"learner.name={learner}", *named)
    if section == "model":
        network = (
            meaning.removeprefix("option of ").split(", ")[0] if "option of" in meaning else ""
        )
        return (*method_overrides("fedavg"), *((f"model.name={network}",) if network else ()))
    if section in ("training", "pseudo_label"):
        return method_overrides("fedavg_network")
    if section == "clock":
        return (*method_overrides("fedavg"), "cohort_size=5", "clock.seconds_per_example=1")
    return ()


def wrong_values() -> Iterator[tuple[str, tuple[str, ...], tuple[tuple[str, Any], ...]]]:
    """Yield (config, overrides, assignments); sets of overrides without a wrong value are among them."""
    keys = documented_keys()
    names = re.findall(
        r"'(\w+)'", next(allowed for key, _, allowed, _ in keys if key == "algorithm")
    )
    bases: dict[tuple[str, ...], None] = dict.fromkeys([(), *map(method_overrides, names)])
    for key, default, allowed, meaning in keys:
        given = overrides_for(key, meaning, names)
        bases.setdefault(given)
        for text in wrong_texts(default, allowed):
            yield DIGITS, (*given, f"{key}={text}"), ()
        for value in wrong_types(default):
            yield DIGITS, *assigned_to(key, value, given)
        *parents, leaf = key.split(".")
        misspelled = ".".join([*parents, leaf[:-2] + leaf[-1] + leaf[-2]])
        if misspelled != key:
            yield DIGITS, (*given, f"{misspelled}={default}"), ()
    for given in bases:
        yield DIGITS, given, ()
    for section in dict.fromkeys(key.rpartition(".")[0] for key, *_ in keys if "." in key):
        yield DIGITS, (f"{section}=1",), ()
        yield DIGITS, (f"{section}.no_such_key=1",), ()
        yield DIGITS, (f"{section}x.key=1",), ()
        yield DIGITS, (), ((f"{section}.no_such_key", 1),)
    for overrides in TOGETHER:
        yield DIGITS, tuple(overrides), ()


def assigned_to(
    key: str, value: Any, given: Sequence[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """Return overrides and assignments where no override replaces what is assigned."""
    texts = [text.partition("=")[::2] for text in given]
    network = [(other, name) for other, name in texts if other == "model.name" and key != other]
    left = (f"{other}={text}" for other, text in texts if other not in (key, "model.name"))
    return tuple(left), (*network, (key, value))


def wrong_texts(default: Any, allowed: str) -> list[str]:
    """Return texts that are no value of a key, or out of its range, or at the end of float32."""
    if isinstance(default, bool):
        return ["maybe", "2", "", "nan"]
    if isinstance(default, int):
        least = re.search(r"from (-?\d+)", allowed)
        below = [str(int(least[1]) - 1)] if least else ["7"]
        return ["word", "1.5", "", "nan", "-1000000", "2147483648", *below]
    if isinstance(default, float):
        bounds = re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", allowed)
        beyond = [str(float(bound) + change) for bound in bounds for change in (-0.01, 0.01)]
        return ["word", "", "nan", "inf", "1e39", "1e-46", "-1", "0", *beyond]
    if isinstance(default, str):
        return ["", "no_such_name", f"{default[:-1]}" or "x", "1"]
    if isinstance(default, tuple):
        return ["(", "no_such_name", "-1", "(1, 'a')", "nan", "(1e39,)", "1,1", "translate:x"]
    return ["word", "-1", "nan", "1e39", "0", "('a', 'a')", "()"]


def wrong_types(default: Any) -> list[Any]:
    """Return values of other types than a key's, as a config file may assign them."""
    others: dict[type, list[Any]] = {
        bool: [1, "true"],
        int: [True, 1.5, "1", (1,)],
        float: [True, "0.5", (0.5,)],
        str: [1, None, ("a",)],
        tuple: [1, "a", None, (None,)],
    }
    return others.get(type(default), [True, (1,), 1.5])


ON_CLOCK = ("clock.seconds_per_example=1", "cohort_size=5")
RESILIENT = ("xclp.row_sums=masked_resilient", "xclp.influence=columns")


def _with(method: str, *texts: str) -> tuple[str, ...]:
    return (*method_overrides(method), *texts)


# Values that do not go together, and some that do.
TOGETHER: tuple[tuple[str, ...], ...] = (
    ("federation.num_clients=0",),
    ("selection.settings=cross_validated", "algorithm=network", "baselines="),
    ("algorithm=client_knn", "baselines=client_knn"),
    ("baselines=client_knn,client_knn",),
    ("baselines=client_knm",),
    ("federation.num_labeled=5", "federation.labeled_per_class=5"),
    ("audit.rounds=(101,)",),
    ("audit.rounds=(0,)",),
    ("audit.shadows=3",),
    _with("pate", "pate.teacher_rounds=101"),
    ("cohort_size=11",),
    ("cohort_size=10",),
    ("federation.num_labeled_clients=11",),
    ("federation.left_out_client=10",),
    ("federation.left_out_client=-2",),
    _with("fedavg", "training.training_cohort_size=11"),
    _with("fedavg", "training.training_cohort_size=3", "cohort_size=2"),
    _with("fedavg", "fedavg.training.training_cohort_size=11"),
    _with("fedavg", "training.training_cohort_size=2", "federation.labels_at=server"),
    # Simulated time.
    ("clock.seconds_per_round=1",),
    ("clock.over_selection=1.5", "clock.seconds_per_example=1"),
    ("sampling=groups", *ON_CLOCK),
    _with("dp_fedavg_records", *ON_CLOCK, "clock.over_selection=1.5"),
    _with("fedbuff"),
    _with("fedbuff", "fedbuff.concurrency=6", *ON_CLOCK),
    _with("fedbuff", "fedbuff.concurrency=4", *ON_CLOCK),
    _with("fedbuff", "fedbuff.concurrency=11", *ON_CLOCK),
    _with("fedbuff", "sampling=proportional", *ON_CLOCK),
    _with("fedbuff", "federation.labels_at=server", *ON_CLOCK),
    # Labels at the server.
    ("federation.labels_at=server",),
    *(
        _with("fedavg", "federation.labels_at=server", other)
        for other in (
            "federation.num_labeled_clients=3",
            "federation.reveal_labels=true",
            "federation.left_out_client=1",
            "federation.graph=labeled",
            "training.server_epochs=1",
        )
    ),
    *(
        _with(name, "federation.labels_at=server")
        for name in ("fedct", "scaffold", "fedper", "fedavg_per_client_lp", "pate", "fedavg_xclp")
    ),
    *(_with(name, "federation.labels_at=clients") for name in AT_SERVER),
    *(
        _with("fedavg_xclp", "federation.labels_at=server", other)
        for other in (
            "xclp.bit_epsilon=1",
            "xclp.label_epsilon=1",
            "xclp.hamming=masked",
            "xclp.row_sums=masked",
            "xclp.select=alpha",
            "xclp.client_prior=1",
            "xclp.confidence=calibrated",
            "xclp.compared_clients=4",
            "xclp.influence=columns",
        )
    ),
    # Public examples.
    ("algorithm=fedct", "baselines="),
    ("federation.public_labeled=true",),
    _with("fedmd", "federation.public_fraction=0"),
    # Views.
    ("preprocessing.views=2",),
    ("preprocessing.views=2", "preprocessing.kind=pretrained", "training.augmentation=flip"),
    _with("fedavg", "preprocessing.views=2"),
    _with("fedavg", "preprocessing.views=2", "preprocessing.kind=pretrained"),
    _with(
        *("fixmatch", "preprocessing.views=2", "preprocessing.kind=pretrained"),
        "fixmatch.training.strong_augmentation=flip",
    ),
    _with("fedct", "preprocessing.views=2", "preprocessing.kind=pretrained"),
    # Learners.
    _with("fedct", "learner.name=mixed"),
    _with("fedct", "learner.names=decision_tree"),
    _with(
        *("fedct", "learner.name=mixed", "federation.num_clients=2"),
        "learner.names=decision_tree,network,network",
    ),
    _with("fedct", "learner.name=mixed", "learner.names=decision_tree,networks"),
    *(
        _with(name, "learner.name=decision_tree")
        for name in ("fedmd", "distributed_distillation", "dsfl", "pate", "local_learning")
    ),
    _with("fedct", "learner.name=estimator"),
    _with("fedct", "learner.name=estimator", "learner.estimator.estimator=no.such.Class"),
    _with("fedct", "learner.name=estimator", "learner.estimator.estimator=sklearn.svm.SVC"),
    _with(
        *("fedct", "learner.name=estimator", "learner.estimator.estimator=sklearn.svm.SVC"),
        "learner.estimator.no_such=1",
    ),
    _with("fedct", "learner.decision_tree.training=1"),
    _with("fedct", "learner.no_such.max_depth=1"),
    # XCLP.
    ("xclp.projection=group_secret",),
    ("xclp.projection=group_secret", "xclp.hamming=masked"),
    ("xclp.neighbors=approximate", "xclp.hamming=masked"),
    ("xclp.neighbors=approximate", "xclp.compared_clients=4"),
    ("xclp.mask_partners=4",),
    ("xclp.mask_partners=3", *RESILIENT),
    ("xclp.mask_partners=2", *RESILIENT),
    ("xclp.mask_partners=8", *RESILIENT),
    ("xclp.mask_partners=16", "federation.num_clients=40", *RESILIENT),
    ("xclp.mask_partners=16", "federation.num_clients=40", "cohort_size=30", *RESILIENT),
    _with("fedavg_xclp", "xclp.mask_partners=2", *RESILIENT),
    ("xclp.presence=1@hamming",),
    ("xclp.presence=1@no_such_stage", "xclp.hamming=masked"),
    ("xclp.presence=1@row_sums", "xclp.hamming=masked"),
    ("xclp.presence=10@row_sums", *RESILIENT),
    ("xclp.presence=9@row_sums", *RESILIENT),
    ("xclp.presence=200%@row_sums", *RESILIENT),
    ("xclp.presence=x", *RESILIENT),
    ("xclp.relative_confidence=true", "xclp.confidence=calibrated"),
    ("xclp.alpha=0.3", "xclp.confidence=calibrated"),
    ("xclp.alpha=0.3", "xclp.select=client_prior"),
    ("xclp.select=alpha:0.3",),
    ("xclp.select=alpha:0.9:2",),
    ("xclp.select=no_such",),
    ("xclp.select=alpha,alpha",),
    ("xclp.select=client_prior:1",),
    ("xclp.select=num_bits:33",),
    ("pooled_lp.select=num_bits",),
    ("pooled_lp.num_bits=64",),
    ("xclp.alpha=auto",),
    # Optimizers and methods' own training.
    _with("fedavg", "training.momentum=0.9", "training.optimizer=adam"),
    _with("fedavg", "training.nesterov=true"),
    _with("fedavg", "training.nesterov=true", "training.momentum=0.9"),
    _with("fedavg", "training.server_momentum=0.9", "training.server_optimizer=yogi"),
    _with("fedavg", "fedavg.training.momentum=0.9", "training.optimizer=adam"),
    _with("fedavg", "fedavg.training.optimizer=adamm"),
    _with("fedavg", "fedavg.training.no_such=1"),
    _with("fedavg", "fedavg.training.strong_augmentation=flip"),
    _with("fedavg", "fedavg.training.unlabeled_ratio=2"),
    _with("fedavg", "fedavg.training.epochs=0"),
    _with("dp_fedavg", "dp_fedavg.training.server_optimizer=adam"),
    _with("dp_fedavg", "dp_fedavg.training.weighting=examples"),
    _with("dp_fedavg_records", "dp_fedavg_records.training.augmentation=flip"),
    _with("feddyn", "feddyn.training.server_optimizer=adam"),
    _with("fedproto", "fedproto.training.weighting=uniform"),
    ("client_knn.training.epochs=2",),
    _with("fedavg_network", "training.labeled_only_rounds=100"),
    _with("fedavg_network", "fedavg_network.training.labeled_only_rounds=100"),
    _with("fedavg", "training.labeled_only_rounds=100"),
    _with("fedavg", "training.initial_model=no_such_folder"),
    _with("fedavg", "training.initial_model=pretrained"),
    _with("fixmatch", "training.strong_augmentation="),
    _with("fedavg", "training.augmentation=flip:1"),
    _with("fedavg", "training.augmentation=translate:2000"),
    _with("fedavg", "training.class_weights=1,0"),
    _with("fedavg", "training.class_weights=1,inf"),
    *(
        _with(name, f"{name}.pseudo_label=no_such")
        for name in ("fedavg", "fedprox", "scaffold", "feddyn", "fedper", "fixmatch", "sage")
    ),
    _with("fedavg_xclp", "fedavg_xclp.pseudo_label=network"),
    ("fedavg.no_such=1",),
    ("fedavg.model=1",),
    ("fedavg.training=1",),
    ("other.algorithm=fedavg", "baselines=other", "other.training.epochs=0"),
    ("other.algorithm=fedprox", "baselines=other", "other.mu=-1"),
    ("other.algorithm=no_such", "baselines=other"),
    ("dataset.algorithm=fedavg",),
    # Privacy.
    _with("dp_fedavg", "dp_fedavg.noise_multiplier=1", "dp_fedavg.target_epsilon=1"),
    _with(
        *("dp_fedavg_records", "dp_fedavg_records.noise_multiplier=1"),
        "dp_fedavg_records.target_epsilon=1",
    ),
    _with("dp_fedavg", "dp_fedavg.noise_multiplier=-1"),
    _with("dp_fedavg", "dp_fedavg.target_epsilon=1", "dp_fedavg.delta=0"),
    _with("fedct", "fedct.epsilon=2"),
    _with("fedct", "fedct.release=xor", "fedct.consensus=staple"),
    _with("fedct", "fedct.release=xor", "fedct.rows=3", "fedct.sensitivity=estimated"),
    _with("fedct", "fedct.release=xor", "fedct.sensitivity=stability"),
    _with("fedct", "fedct.release=xor", "fedct.stability_rate=0.1"),
    _with("fedct", "fedct.release=randomized_response", "fedct.condition=paper"),
    _with("fedct", "fedct.release=xor", "fedct.neighbors=3"),
    _with("fedct", "fedct.consensus=no_such"),
    _with("fedct", "fedct.consensus=staple", "fedct.threshold=0.8"),
    _with("fedct", "fedct.consensus=staple", "fedct.sums=masked"),
    _with("fedct", "fedct.mask_partners=4"),
    _with("fedct", "fedct.mask_partners=2", "fedct.sums=masked_resilient"),
    _with("fedct", "fedct.presence=1@sum"),
    _with("fedct", "fedct.presence=1@no_such", "fedct.sums=masked_resilient"),
    _with("fedct", "fedct.presence=20@sums", "fedct.sums=masked_resilient"),
    _with("pate", "pate.gamma=-1"),
    _with("protofssl", "protofssl.prototype_sums=masked"),
    _with("protofssl", "protofssl.prototype_sums=masked", "protofssl.prototypes=global"),
    _with(
        *("protofssl", "protofssl.prototype_sums=masked", "protofssl.prototypes=global"),
        "protofssl.helper_choice=newest",
    ),
    _with("protofssl", "protofssl.prototype_network=mean", "protofssl.helper_choice=newest"),
    _with("protofssl", "protofssl.targets=xclp", "protofssl.prototypes=global"),
    _with("protofssl", "protofssl.noise=1", "protofssl.min_labels=0"),
    _with("fixmatch", "fixmatch.thresholds=freematch", "fixmatch.threshold=0.5"),
    _with("fixmatch", "fixmatch.labeled_by=received", "fixmatch.thresholds=flexmatch"),
    _with("cbafed", "cbafed.threshold=0.9", "cbafed.highest_threshold=0.5"),
    # Selection of settings.
    ("selection.candidates.fedavg.mu=1",),
    ("selection.candidates.no_such.alpha=0.5",),
    ("selection.candidates.xclp.alpha=2", "selection.settings=cross_validated"),
    ("selection.candidates.xclp.alpha=a",),
    ("selection.candidates.xclp.num_bits=33", "selection.settings=cross_validated"),
    ("selection.candidates.xclp.hamming=masked",),
    ("selection.settings=cross_validated", "xclp.select=alpha"),
    ("selection.settings=cross_validated", "selection.folds=1"),
    # Networks, execution, deployment.
    _with("fedavg", "model.name=mlpp"),
    _with("fedavg", "model.channels=(16,)"),
    _with("fedavg", "model.hidden=(0,)"),
    _with("fedavg", "model.name=cnn", "model.norm=layer"),
    _with("fedavg", "model.name=cnn", "model.hidden=-1"),
    _with("fedavg", "model.name=resnet9", "model.pools=(2, 2)"),
    ("execution.workers=1025",),
    ("deployment.nodes=('a', 'a')",),
    ("deployment.nodes=0",),
    ("federation.table=((1, 2), (1,))",),
    ("federation.table=((0, 0),)",),
    ("preprocessing.kind=federated_features",),
    ("rounds",),
    ("seed=2147483648",),
    ("labeled_cohorts=false",),
    ("xclp.self_edges=true",),
    ("lr=0.1",),
    ("clients_per_round=5",),
)
