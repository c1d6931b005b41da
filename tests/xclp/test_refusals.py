"""What XCLP refuses: inputs, parameters, protocols that do not go together, later points."""

from functools import cache, partial
from pathlib import Path
from unittest import mock

import numpy as np
import refusals

from jaxfed.algorithms.xclp import xclp
from jaxfed.config import check, file
from jaxfed.errors import ProtocolError
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution import Execution
from jaxfed.host.parallel import processes
from jaxfed.xclp import Parameters, Propagation, label_later, network, propagate_labels
from jaxfed.xclp import cross_client_label_propagation as labeled
from jaxfed.xclp.network import check_network

X, Y = np.zeros((2, 3), np.float32), np.array([0, -1])


def of(vectors, labels=(Y,), **given):
    return lambda: propagate_labels(vectors, labels, **{"num_classes": 2} | given)


def of_1_mb(call):
    little = mock.patch("jaxfed.federation.execution.available_bytes", return_value=10**6)
    return little(lambda _: call())


one = partial(of, [X])
MASKED = {"hamming": "masked", "row_sums": "masked", "influence": "columns"}
INPUTS = {
    "...1 clients' vectors": one([]),
    "...0 clients": of([], []),
    "...array [2, 2, 3]; use [n, d]": of([np.zeros((2, 2, 3))]),
    "...vectors are a NoneType: use lists": of(None, None),
    "...labels are a list_iterator: use": one(iter([Y])),
    "...vectors are a dict: use lists of one array": of({"a": X}),
    "Execution.workers=-1: use integers from 0": lambda: Execution(workers=-1),
    "Execution.num_devices=None: use integers": lambda: Execution(num_devices=None),
    "...num_devices=5: use": lambda: Execution(num_devices=5).mesh,
    "xclp.head='ridge': matrices of 256 x 256 features would take 1.58 MB": of_1_mb(
        of([np.eye(2, 256, dtype=np.float32)], num_bits=64, num_neighbors=1, head="ridge")
    ),
    "xclp.presence: client 9: at most 3 of 4 clients": of(
        [np.ones((6, 3))] * 4,
        [np.arange(6) % 2] * 4,
        **{"num_bits": 64, **MASKED, "presence": ("9@row_sums",)},
    ),
}


def p(**given):
    return lambda: Parameters(**{"num_classes": 2} | given)


def chosen(*entries):
    return lambda: Parameters(2, select=entries)


def leaves(*presence, **given):
    return lambda: Parameters(2, presence=presence, **given)


PARAMETERS = {
    "xclp.alpha=0.999999999999: use numbers from 0.01 to 0.9999999": p(alpha=0.999999999999),
    "xclp.num_bits=100: use multiples of 32": p(num_bits=100),
    "xclp.hamming='magic'...'plaintext'": p(hamming="magic"),
    "...relative_confidence=True: ...; set": p(confidence="calibrated", relative_confidence=True),
    "...relative_confidence=True: the server would see": p(**MASKED, relative_confidence=True),
    "xclp.head='ridge': the head has answers...leave out client_prior, or": p(
        head="ridge", client_prior=1.0
    ),
    "xclp.head='none': ...without confidence": p(select=("head",), confidence="calibrated"),
    "xclp.row_sums='masked_resilient_signed': sums for the mean": p(
        **{**MASKED, "row_sums": "masked_resilient_signed"}, center=True
    ),
    "xclp.label_matrix='degree_balanced': the server has degrees": p(
        **MASKED, label_matrix="degree_balanced"
    ),
    "xclp.influence='labels': the server would receive...; set 'columns'": p(row_sums="masked"),
    "xclp.select=...leave-one-out needs codes...use (), or set": p(
        **MASKED, select=("label_matrix",)
    ),
    "xclp.confidence='calibrated': leave-one-out needs": p(hamming="ot", confidence="calibrated"),
    "xclp.late_fraction=0.5: late points need codes and scores...use 0, or set": lambda: xclp(
        num_classes=2, late_fraction=0.5, hamming="masked"
    ),
    "xclp.compared_clients=1: use multiples of 4, 0 is all": p(compared_clients=1),
    "...late_fraction=1.5: use numbers from 0 to 1": lambda: xclp(num_classes=2, late_fraction=1.5),
    "xclp.alpha=0.49: leave-one-out is not exact": p(alpha=0.49, confidence="calibrated"),
    "xclp.alpha=0.49: leave-one-out is not exact  select": p(alpha=0.49, select=("label_matrix",)),
    "xclp.select=...is not exact in float32": chosen("alpha:0.5:0.49"),
    "xclp.select='beta'": chosen("beta"),
    "xclp.select='alpha:0.5': use each of ... once": chosen("alpha", "alpha:0.5"),
    "...use floats as values of alpha, such as 0.5": chosen("alpha:high"),
    "...the value 1.5 of alpha is out of range; use numbers from 0.01": chosen("alpha:1.5"),
    "...'centered' of label_matrix is out of range; choose": chosen("label_matrix:centered"),
    "...use 'client_prior' alone; leave-one-out estimates it": chosen("client_prior:0.5"),
    "...the value 100 of num_bits is out of range; use mult": chosen("num_bits:100"),
    "xclp.select='alpha': use lists of text, such as": p(select="alpha"),
    "...num_bits": lambda: Propagation(2, select=("num_bits",)),
    "xclp.presence=...use a tuple of 'CLIENT@STAGE'": p(presence="1@sums", **MASKED),
    "...stage 'setup' needs": leaves("1@setup"),
    "...stage 'hamming' needs": leaves("1@hamming", row_sums="masked", influence="columns"),
    "...stage 'influence' needs": leaves("1@influence", hamming="masked"),
    "...stage 'row_sums' needs": leaves("1@row_sums", hamming="masked"),
}

NETWORKED = MASKED | {"num_bits": 64, "num_neighbors": 4}
NO_NETWORK = {
    **{"hamming": "ot", "row_sums": "plaintext", "bit_epsilon": 1.0, "label_epsilon": 1.0},
    **{"presence": ("1@hamming",), "compared_clients": 8},
}


def on_a_network(key, value):
    return lambda: check_network(Parameters(**{"num_classes": 3} | NETWORKED | {key: value}))


def in_processes(**noise):
    def call():
        with mock.patch.object(processes, "are_several", return_value=True):
            labeled([X], [Y], Parameters(2, **noise))

    return call


SEVERAL = {
    f"xclp.{key}=...does not run on a network": on_a_network(key, value)
    for key, value in NO_NETWORK.items()
} | {
    "...allowed in a run of one process": in_processes(bit_epsilon=2.0),
    "...allowed in a run of one process  labels": in_processes(label_epsilon=2.0),
}

RNG = np.random.default_rng(0)
VECTORS, LABELS = [RNG.normal(size=(6, 4)).astype(np.float32)] * 3, [np.arange(6) % 3] * 3
SMALL = {"num_classes": 3, "num_bits": 64, "num_neighbors": 3}
GOOD = np.ones((2, 4), np.float32)


@cache
def found(**given):
    return propagate_labels(VECTORS, LABELS, **SMALL, **given)


def later(vectors):
    return lambda: found().label(vectors)


@cache
def result():
    return labeled(VECTORS, LABELS, Parameters(**SMALL, **MASKED))


def labeled_later(vectors):
    return label_later(result(), vectors, Parameters(**SMALL, **MASKED))


LATER = {
    "...vectors have 3 entries; use 4": later([np.ones((2, 3))]),
    "...xclp.row_sums='masked' no party has both...set both to": lambda: labeled_later([GOOD]),
}

DIGITS = str(Path("ml_collections_configs/xclp_digits.py").resolve())


def configured(*overrides):
    return lambda: check.check(file.load(f"{DIGITS}:tuned", overrides))


def candidates(setting, values):
    def call():
        config = file.load(f"{DIGITS}:tuned")
        config.unlock()
        config.fedprox = {"mu": 0.1}
        name, _, key = setting.partition(".")
        if name not in config.selection.candidates:
            config.selection.candidates[name] = {}
        with config.selection.candidates[name].ignore_type():
            config.selection.candidates[name][key] = values
        check.check(config)

    return call


FOLDS = "config.selection.candidates."
CONFIGS = {
    "config.selection.settings='best': choose one of": configured("selection.settings=best"),
    "config.selection.measure='hits': choose one of": configured("selection.measure=hits"),
    f"{FOLDS}xclp.num_bits=...33...use ...mul": configured(
        "selection.candidates.xclp.num_bits=(33,)"
    ),
    f"{FOLDS}client_knn.num_neighbors=...0...use ...integers from 1 on": configured(
        "selection.candidates.client_knn.num_neighbors=0"
    ),
    f"{FOLDS[:-1]}...  a misspelled key": candidates("xclp.aplha", (0.5,)),
    f"{FOLDS[:-1]}...  no method's": candidates("training.momentum", (0.5,)),
    f"{FOLDS[:-1]}...  a method that trains": candidates("fedprox.mu", (0.1,)),
    f"{FOLDS[:-1]}...  no number or switch": candidates("xclp.hamming", ("ot",)),
    f"{FOLDS}xclp.alpha=0.5: use ...of numbers": candidates("xclp.alpha", 0.5),
    "...exclude each other; keep one of them": lambda: file.load(f"{DIGITS}:tuned,auto"),
}


def malformed(terms):
    cohort = Cohort(np.zeros(1, np.int32), X[None], Y[None], np.ones((1, 2), bool))
    p = Parameters(num_classes=3, **NETWORKED)
    return lambda: network.answered(
        p, "join", network.NO_STATE, {"terms": terms, "message": b""}, cohort
    )


MESSAGES = {
    "...malformed terms of a session": malformed(""),
    "...malformed terms of a session  no seed": malformed('{"address":0}'),
    "...malformed terms of a session  address": malformed('{"address":-1,"seed":1,"round":1}'),
}

test_refused = refusals.table(INPUTS | PARAMETERS | SEVERAL)
test_later_points = refusals.table(LATER)
test_configs = refusals.table(CONFIGS)
test_messages = refusals.table(MESSAGES, ProtocolError)
