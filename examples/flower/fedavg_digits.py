r"""FedAvg of three clients over a network, or on one machine:

    python -m launch.flower try --config=examples/flower/fedavg_digits.py --workdir=runs/flower

`federation` and `dataset` describe the simulation and what `try` deals to its clients. Real clients bring
their own folders; the server reads `deployment` and all that says how to train.
"""

from ml_collections import ConfigDict

from jaxfed.config import base


def get_config(variant: str = "") -> ConfigDict:
    """No variants of its own."""
    config = base.get_config()
    config.algorithm = "fedavg"
    config.baselines = ()
    config.num_repeats = 1
    config.rounds = 5
    config.dataset.name = "digits"
    config.preprocessing.kind = "images"
    config.federation.num_clients = 3
    config.federation.partition = "dirichlet"
    config.federation.dirichlet_alpha = 1.0
    config.federation.labeled_fraction = 0.5
    config.federation.test = "central"
    config.model.name = "mlp"
    config.model.hidden = (64,)
    config.training.batches = "joint"
    config.training.batch_size = 32
    config.training.learning_rate = 0.1

    config.deployment.quorum = 0.6  # two of three clients are enough
    config.deployment.deadline = 300.0  # seconds a stage
    config.deployment.wait_for_nodes = 600.0
    return base.apply_variants(config, variant)
