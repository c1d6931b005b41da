"""FedAvg+XCLP and the baselines of its Tables 4 and 5 that share its training, on one data set.

Algorithm 2, Section 4.2 and Appendix A.2 of XCLP: five epochs of confidence-weighted SGD on batches of
labeled and pseudo-labeled examples, the plain mean of the models, labels by XCLP on the current features
in every round. `network` labels by the network itself, `fedsem` once by the model of stage 1,
`per_client_lp` by label propagation inside each client; `fedavg` takes the given labels only.

    python -m launch.run --config=ml_collections_configs/fedavg_xclp.py --workdir=runs/fedavg_digits
"""

from ml_collections import ConfigDict

from ml_collections_configs import base


def get_config(variant: str = "") -> ConfigDict:
    """Variants: smoke."""
    config = base.get_config()
    config.algorithm = "fedavg_xclp"
    config.baselines = ("fedavg", "fedavg_per_client_lp", "fedavg_network", "fedsem")
    config.num_repeats = 3
    config.rounds = 100
    config.cohort_size = 5
    config.sampling = "proportional"
    config.evaluate_every = 10
    config.checkpoint_every = 10

    config.dataset.name = "digits"
    config.dataset.validation_fraction = 0.1
    config.preprocessing.kind = "images"
    config.federation.num_clients = 20
    config.federation.num_labeled = 100
    config.federation.test = "central"

    config.model.name = "mlp"
    config.model.hidden = (128,)
    config.training.learning_rate = 0.1
    config.training.schedule = "cosine"
    config.training.schedule_rounds = 133  # A.2: to 0 after 4/3 of the rounds
    config.training.weight_decay = 2e-4
    config.training.labeled_only_rounds = 20
    # Other methods on the same data: rates of FedMatch's weights are those of the paper's 1e-3.
    config.training.strong_augmentation = ("translate:1", "cutout:3")
    config.fedmatch = ConfigDict()
    config.fedmatch.supervised_weight = 1.0
    config.fedmatch.l2_weight = 0.1
    config.fedmatch.l1_weight = 1e-6
    config.fedsiam = ConfigDict()
    config.fedsiam.rampup_rounds = 5
    config.xclp.tolerance = 1e-4  # of the label propagation: labels, not scores, are wanted
    return base.apply_variants(config, variant, {"smoke": _smoke})


def _smoke(config: ConfigDict) -> None:
    config.num_repeats = 1
    config.rounds = 6
    config.evaluate_every = 2
    config.training.labeled_only_rounds = 2
