r"""XCLP for prediction on handwritten characters, every writer a client: Appendix B.1, Table 6.

LEAF's FEMNIST: 62 classes, images of 28 x 28, about 3,600 writers; labels on a share of each writer's
training images; a tenth of the writer's images are the new points. `identity` works on pixels; `linear` on
the first layer of a two-layer linear MLP that the writers train by FedAvg on their labels, beside that
MLP's own labels (`network`, the table's FedAvg). As in the paper, XCLP runs on one group of writers after
another, of at most `cohort_size`; `joint` runs it on all of them at once, which the paper avoids.

    # DIR/femnist: the folder data/ of https://huggingface.co/datasets/flwrlabs/femnist
    export JAXFED_DATA=DIR
    python -m launch.sweep --config=ml_collections_configs/femnist.py --workdir=runs/femnist_identity
    python -m launch.sweep --config=ml_collections_configs/femnist.py:linear \
        --workdir=runs/femnist_linear
    python -m launch.run --config=ml_collections_configs/femnist.py:linear,joint \
        --workdir=runs/femnist_linear_joint

Chars74K's handwriting, an .npz with a column `writer`, is a small stand-in. Its 55 writers wrote each of 44
characters once, so a writer's labels say nothing about that writer's new images (per-client LP is right
in 0 % of cases) and a few writers have next to no label of a character: one graph over all of them then.

    export JAXFED_DATA=DIR    # with chars74k_hnd/chars74k_hnd_28.npz
    python -m launch.sweep --config=ml_collections_configs/femnist.py:chars74k \
        --workdir=runs/chars74k_identity
    python -m launch.sweep --config=ml_collections_configs/femnist.py:chars74k,linear \
        --workdir=runs/chars74k_linear

The paper gives neither the MLP's size nor how it is trained, nor XCLP's settings here: those of A.2 stand.
"""

from collections.abc import Callable

from ml_collections import ConfigDict

from jaxfed.config import base


def get_config(variant: str = "") -> ConfigDict:
    """Variants, to be joined by commas:

    linear      features of a linear MLP trained by FedAvg in place of pixels
    joint       one graph over all writers in place of groups
    chars74k    the stand-in, all writers at once; LP on pooled data in place of per-client LP
    tuned       every method's alpha by cross-validation over the labeled points, in every group; in a
                sweep every point twice, with the paper's alpha and so
    auto        XCLP and label propagation with what leave-one-out chooses
    smoke       digits, which name no writers: two groups of four clients drawn by Dirichlet
    """
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
    config.dataset.name = "femnist"
    config.dataset.label_key, config.dataset.client_key = "character", "writer_id"
    config.dataset.test_fraction = 0.1  # of each writer, as LEAF's -t sample
    config.num_repeats = 3
    config.baselines = ("per_client_lp",)
    config.paper_table = "xclp/6"
    config.federation.num_clients = 0  # as many as writers
    config.federation.partition = "natural"
    config.sampling = "groups"
    config.cohort_size = 72
    config.rounds = 50

    config.model.name = "linear_mlp"
    config.model.embedding = 128
    config.preprocessing.cohort_size = 100
    config.training.batches = "joint"
    config.training.batch_size = 20
    config.training.epochs = 1
    config.training.learning_rate = 0.03
    config.training.weighting = "examples"
    return base.apply_variants(config, variant, VARIANTS)


def _other_data(config: ConfigDict, name: str) -> None:
    config.dataset.name, config.dataset.test_fraction = name, 0.2
    config.dataset.label_key = config.dataset.client_key = ""


def _linear(config: ConfigDict) -> None:
    config.preprocessing.kind = "federated_features"
    config.preprocessing.rounds = 500
    config.baselines = ("network", *config.baselines)


def _joint(config: ConfigDict) -> None:
    config.cohort_size = 0
    config.rounds = 1


def _chars74k(config: ConfigDict) -> None:
    _other_data(config, "chars74k_hnd/chars74k_hnd_28.npz")
    config.baselines = tuple(
        "pooled_lp" if name == "per_client_lp" else name for name in config.baselines
    )
    config.preprocessing.cohort_size = 0
    _joint(config)


def _smoke(config: ConfigDict) -> None:
    config.num_repeats = 1
    _other_data(config, "digits")
    config.federation.partition = "dirichlet"
    config.federation.num_clients = 8
    config.federation.min_size = 5
    if config.cohort_size:
        config.cohort_size, config.rounds = 4, 2
    config.preprocessing.cohort_size = 0
    config.preprocessing.rounds = min(config.preprocessing.rounds, 20)


VARIANTS = {"linear": _linear, "joint": _joint, "chars74k": _chars74k, "smoke": _smoke}


def sweep(add: Callable[..., None], variant: str = "") -> None:
    """The rows of Table 6: the share of each writer's training images that carry labels."""
    add = base.beside_tuned(add, variant)
    for fraction in (0.1, 0.2, 0.5, 1.0):
        add(**{"federation.labeled_fraction": fraction})
