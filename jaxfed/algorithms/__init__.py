"""The methods, one a file. A new one is a file, a line here and a config; tests follow by themselves.

One that lives elsewhere is registered: `ALGORITHMS.register(name)` (`jaxfed.registry`).

A factory takes its ingredients by keyword: `ALGORITHMS[name](num_classes=C, **config[name])`, or
`ALGORITHMS[name](training=..., **config[name])` where it trains a model, `learner=...` where clients have
models of their own (`jaxfed.config.assembly`).
"""

from collections.abc import Callable
from functools import partial

from jaxfed.algorithms.centralized import centralized
from jaxfed.algorithms.client_knn import client_knn
from jaxfed.algorithms.distributed_distillation import distributed_distillation
from jaxfed.algorithms.dp_fedavg import dp_fedavg
from jaxfed.algorithms.dp_fedavg_records import dp_fedavg_records
from jaxfed.algorithms.fedavg import fedavg, fedsem
from jaxfed.algorithms.fedct import fedct
from jaxfed.algorithms.feddyn import feddyn
from jaxfed.algorithms.fedmatch import fedmatch
from jaxfed.algorithms.fedmd import fedmd
from jaxfed.algorithms.fedprox import fedprox
from jaxfed.algorithms.fedrgd import fedrgd
from jaxfed.algorithms.fedsiam import fedsiam
from jaxfed.algorithms.fixmatch import fixmatch
from jaxfed.algorithms.label_propagation import per_client_lp, pooled_lp
from jaxfed.algorithms.local_learning import local_learning
from jaxfed.algorithms.mixmatch import mixmatch
from jaxfed.algorithms.network import network
from jaxfed.algorithms.pate import pate
from jaxfed.algorithms.protofssl import protofssl
from jaxfed.algorithms.scaffold import scaffold
from jaxfed.algorithms.semifl import semifl
from jaxfed.algorithms.xclp import xclp
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.registry import Registry

_OWN: dict[str, Callable[..., FederatedAlgorithm]] = {
    "xclp": xclp,
    "per_client_lp": per_client_lp,
    "pooled_lp": pooled_lp,
    "client_knn": client_knn,
    "network": network,
    "fedavg": fedavg,
    "fedavg_xclp": partial(fedavg, pseudo_label="xclp"),
    "fedavg_xclp_prototypes": partial(fedavg, pseudo_label="xclp_prototypes"),
    "fedavg_per_client_lp": partial(fedavg, pseudo_label="per_client_lp"),
    "fedavg_network": partial(fedavg, pseudo_label="network"),
    "fedsem": fedsem,
    "dp_fedavg": dp_fedavg,
    "dp_fedavg_records": dp_fedavg_records,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "fixmatch": fixmatch,
    "mixmatch": mixmatch,
    "fedmatch": fedmatch,
    "fedsiam": fedsiam,
    "protofssl": protofssl,
    "fedrgd": fedrgd,
    "semifl": semifl,
    "fedct": fedct,
    "local_learning": local_learning,
    "centralized": centralized,
    "distributed_distillation": distributed_distillation,
    "fedmd": fedmd,
    "pate": pate,
}
ALGORITHMS = Registry("method", _OWN)
