r"""XCLP for prediction on Fed-ISIC2019, six hospitals' skin lesions: Section 4.1 and A.1, Tables 1 to 3.

18,597 training and 4,650 new images, 8 diagnoses, judged by balanced accuracy. Features are those of an
EfficientNet-B0 trained on ImageNet (`pretrained`), or after all of it was fine-tuned by FedAvg on the
clients' labels (the default), beside that network's own labels (`network`, the tables' FedAvg).

    # FLamby's ISIC_2019_Training_Input_preprocessed/ and its repository's train_test_split in
    # DIR/fed_isic2019, efficientnet_b0.safetensors in DIR (see jaxfed/models/efficientnet.py)
    export JAXFED_DATA=DIR

    # Table 1, right and left
    python -m launch.sweep --config=ml_collections_configs/fed_isic2019.py --workdir=runs/isic
    python -m launch.sweep --config=ml_collections_configs/fed_isic2019.py:pretrained \
        --workdir=runs/isic_pretrained
    # L and k by cross-validation, as A.1 says that the paper chose them, beside its 1024 and 3
    python -m launch.sweep --config=ml_collections_configs/fed_isic2019.py:pretrained,tuned \
        --workdir=runs/isic_pretrained_tuned
    # Table 2
    python -m launch.sweep --config=ml_collections_configs/fed_isic2019.py:leave_one_out \
        --workdir=runs/isic_leave_one_out
    # Table 3
    python -m launch.sweep --config=ml_collections_configs/fed_isic2019.py:graphs \
        --workdir=runs/isic_graphs

Training is FLamby's (40 rounds as in A.1): SGD with rate 0.01, 100 steps of 64 images a round whatever a
client's size, means weighted by sizes, focal loss with gamma 2 and weights for the classes. Departures:
images are FLamby's center crop of 200 x 200 from the start, shifted by up to 12 pixels in place of its
random crop of the same size; they are turned (half of them, by up to 50 degrees, with black and not their
reflection from outside), flipped (half of them, along either axis or both) and given holes (half of them, 1
to 8 of 16 x 16, a number drawn for each image and not once) as there; its random scale, shear, brightness and
contrast are left out. BatchNorm's running statistics are averaged (`training.batch_statistics`).
"""

from collections.abc import Callable

from ml_collections import ConfigDict

from jaxfed.config import base

NUM_CENTERS = 6

Add = Callable[..., None]


def get_config(variant: str = "") -> ConfigDict:
    """Variants, to be joined by commas:

    pretrained     features as released, no training; no baseline `network` then
    leave_one_out  sweep over the center that gives no labels and is labeled by the others (Table 2)
    graphs         sweep over the graph on labeled points only, or on unlabeled ones too (Table 3)
    tuned          L and k of XCLP, k of per-client LP by cross-validation over the labeled points, judged
                   by balanced accuracy; in a sweep every point twice, with the paper's values and so
    auto           XCLP and label propagation with what leave-one-out chooses
    smoke          digits, a small CNN and six clients drawn by Dirichlet in place of the centers
    """
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
    config.dataset.name = "fed_isic2019"
    config.num_repeats = 3
    config.baselines = ("network", "per_client_lp")
    config.paper_table = "xclp/1"
    config.federation.num_clients = 0  # as many as centers
    config.federation.partition = "natural"
    config.federation.labeled_fraction = 1.0
    config.federation.graph = "labeled"
    config.xclp.num_bits = 1024
    config.xclp.num_neighbors = 3
    config.selection.measure = "balanced_accuracy"
    config.xclp.select_measure = (
        "balanced_accuracy"  # the paper's measure for this set; see results/xclp_auto
    )
    candidates = config.selection.candidates
    candidates.xclp.update(
        num_bits=(256, 512, 1024, 2048, 4096), num_neighbors=(1, 3, 5, 10), alpha=()
    )
    candidates.per_client_lp.update(num_neighbors=(1, 3, 5, 10), alpha=())

    config.preprocessing.kind = "federated_features"
    config.preprocessing.rounds = 40
    config.preprocessing.network = "efficientnet_b0"  # of the variant `pretrained`
    config.preprocessing.image_size = 200
    config.model.name = "efficientnet_b0"
    config.training.initial_model = "pretrained"
    config.training.learning_rate = 0.01
    config.training.batches = "joint"
    config.training.batch_size = 64
    config.training.local_steps = 100
    config.training.weighting = "examples"
    config.training.loss = "focal"
    config.training.class_weights = FLAMBY_WEIGHTS
    config.training.augmentation = (
        "rotate:50:0.5",
        "flip_axes:0.5",
        "translate:12",
        "holes:16:8:0.5",
    )
    return base.apply_variants(config, variant, VARIANTS, exclusive=[("leave_one_out", "graphs")])


# Of MEL, NV, BCC, AK, BKL, DF, VASC, SCC: all images over those of the class.
FLAMBY_WEIGHTS = (5.5813, 2.0472, 7.0204, 26.1194, 9.5369, 101.0707, 92.5224, 38.3443)


def _pretrained(config: ConfigDict) -> None:
    config.preprocessing.kind = "pretrained"
    config.baselines = ("per_client_lp",)


def _leave_one_out(config: ConfigDict) -> None:
    config.paper_table = "xclp/2"
    # The client that is left out has no labels, so per-client LP cannot label it.
    config.baselines = tuple(name for name in config.baselines if name != "per_client_lp")


def _graphs(config: ConfigDict) -> None:
    config.paper_table = "xclp/3"


def _smoke(config: ConfigDict) -> None:
    config.num_repeats = 1
    config.dataset.name = "digits"
    config.federation.num_clients = NUM_CENTERS
    config.federation.partition = "dirichlet"
    config.federation.labeled_fraction = 0.2
    config.model = ConfigDict({"name": "cnn", "channels": (16, 32)})
    config.preprocessing.rounds = 10
    if config.preprocessing.kind == "pretrained":  # released for photographs, which digits are not
        config.preprocessing.kind = "identity"
    config.training.initial_model = ""
    config.training.learning_rate = 0.1
    config.training.batch_size = 16
    config.training.local_steps = 20
    config.training.class_weights = ()
    config.training.augmentation = ("translate:1",)


VARIANTS = {
    "pretrained": _pretrained,
    "leave_one_out": _leave_one_out,
    "graphs": _graphs,
    "smoke": _smoke,
}


def sweep(add: Add, variant: str = "") -> None:
    """The rows of the table that the variant names; of Table 1 where none does."""
    add = base.beside_tuned(add, variant)
    names = variant.split(",")
    fractions = (0.05, 0.1, 0.2, 1.0)
    if "leave_one_out" in names:
        for center in range(NUM_CENTERS):
            add(**{"federation.left_out_client": center})
    elif "graphs" in names:
        for fraction in fractions:
            for graph in ("labeled", "labeled+unlabeled"):
                add(**{"federation.labeled_fraction": fraction, "federation.graph": graph})
    else:
        for fraction in fractions:
            add(**{"federation.labeled_fraction": fraction})
