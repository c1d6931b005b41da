r"""FedAvg and its variants for heterogeneous clients, as rows of one table.

    python -m launch.run --config=ml_collections_configs/federated_optimization.py \
        --workdir=runs/optimization
    export JAXFED_DATA=DIR    # a TFDS folder with fashion_mnist and cifar10
    python -m launch.run --config=ml_collections_configs/federated_optimization.py:fashion_mnist \
        --workdir=runs/optimization_fashion_mnist

With `clock`, FedAvg, FedProx and FedBuff (Nguyen et al., AISTATS 2022) in simulated time, on clients of
unequal speeds (docs/time.md):

    python -m launch.run --config=ml_collections_configs/federated_optimization.py:clock --workdir=runs/clock
    python -m launch.report runs/clock

All labels are given (`federation.reveal_labels`); clients differ by Dirichlet(0.3). The rows and all their
keys; `--config.fedadam.training.server_tau=1e-2` sets one of them, and
`--config.baselines=fedadam,fedyogi` chooses among them:

    fedavg       McMahan et al., AISTATS 2017
    fedprox      Li et al., MLSys 2020: fedprox.mu
    scaffold     Karimireddy et al., ICML 2020
    feddyn       Acar et al., ICLR 2021: feddyn.alpha
    fedavgm      Hsu et al., 2019: server_momentum, server_learning_rate
    fedadagrad fedyogi fedadam      Reddi et al., ICLR 2021: server_learning_rate, server_beta1,
                 server_beta2, server_tau

Rates of the adaptive methods are neither the paper's nor tuned: a server rate of 0.1 and tau = 1e-2 take
steps of FedAvg's size on the digits. Their paper searches a grid of both rates and tau for each task.
"""

from collections.abc import Callable

from ml_collections import ConfigDict

from jaxfed.config import base


def get_config(variant: str = "") -> ConfigDict:
    """Variants: fashion_mnist, cifar10 (a small CNN, ten clients of 100 a round), clock, and shared ones."""
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
    config.algorithm = "fedavg"
    config.baselines = (
        *("fedprox", "scaffold", "feddyn", "fedavgm"),
        *("fedadagrad", "fedyogi", "fedadam"),
    )
    config.num_repeats = 3
    config.rounds = 30
    config.cohort_size = 5
    config.evaluate_every = 5
    config.dataset.name = "digits"
    config.dataset.validation_fraction = 0.1
    config.preprocessing.kind = "images"
    config.federation.num_clients = 20
    config.federation.partition = "dirichlet"
    config.federation.dirichlet_alpha = 0.3
    config.federation.reveal_labels = True
    config.federation.test = "central"
    config.model.name = "mlp"
    config.model.hidden = (128,)
    config.training.weighting = "uniform"  # for all methods alike
    config.training.batches = "joint"
    config.training.batch_size = 32
    config.training.epochs = 2
    config.training.learning_rate = 0.1

    config.fedprox = ConfigDict({"mu": 0.01})
    config.feddyn = ConfigDict({"alpha": 0.1})
    config.fedavgm = ConfigDict(
        {"algorithm": "fedavg", "training": {"server_momentum": 0.9, "server_learning_rate": 0.3}}
    )
    for name in ("adagrad", "yogi", "adam"):
        config[f"fed{name}"] = ConfigDict(
            {
                "algorithm": "fedavg",
                "training": {
                    "server_optimizer": name,
                    "server_learning_rate": 0.1,
                    "server_beta1": 0.0 if name == "adagrad" else 0.9,
                    "server_beta2": 0.99,
                    "server_tau": 1e-2,
                },
            }
        )
    return base.apply_variants(config, variant, VARIANTS, exclusive=[("fashion_mnist", "cifar10")])


def _images(config: ConfigDict, name: str) -> None:
    config.dataset.name = name
    config.federation.num_clients = 100
    config.cohort_size = 10
    config.rounds = 200
    config.evaluate_every = 20
    config.model = ConfigDict({"name": "cnn"})


def _clock(config: ConfigDict) -> None:
    config.baselines = ("fedprox", "fedbuff")
    config.evaluate_every = 1
    config.clock.seconds_per_example = 0.01
    config.clock.seconds_per_round = 1.0
    config.clock.speed_spread = 1.0
    config.fedbuff = ConfigDict({"concurrency": 2 * config.cohort_size})


def _smoke(config: ConfigDict) -> None:
    base.smoke(config)
    config.num_repeats = 1
    if config.dataset.name != "digits":
        config.dataset.train_size, config.dataset.test_size = 1000, 200


VARIANTS: dict[str, Callable[[ConfigDict], None]] = {
    "fashion_mnist": lambda config: _images(config, "fashion_mnist"),
    "cifar10": lambda config: _images(config, "cifar10"),
    "clock": _clock,
    "smoke": _smoke,
}


def sweep(add: Callable[..., None]) -> None:
    """Sweep over the heterogeneity of clients."""
    for alpha in (0.05, 0.1, 0.3, 1.0, 10.0):
        add(**{"federation.dirichlet_alpha": alpha})
