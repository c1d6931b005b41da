r"""XCLP for prediction on handwritten digits: scikit-learn's 1,797 images, nothing to download.

Ten clients share the images at random; a tenth of each client's carry labels, a fifth of all images
are new points to be labeled. XCLP Section 4.1 with the preprocessing function `identity`.

    python -m launch.run --config=ml_collections_configs/xclp_digits.py --workdir=runs/xclp_digits
    python -m launch.sweep --config=ml_collections_configs/xclp_digits.py --workdir=runs/xclp_digits_sweep
    python -m launch.sweep --config=ml_collections_configs/xclp_digits.py:tuned \
        --workdir=runs/xclp_digits_tuned
    python -m launch.sweep --config=ml_collections_configs/xclp_digits.py:privacy \
        --workdir=runs/xclp_digits_privacy
    python -m launch.sweep --config=ml_collections_configs/xclp_digits.py:late --workdir=runs/xclp_digits_late
    python -m launch.sweep --config=ml_collections_configs/xclp_digits.py:calibrated \
        --workdir=runs/xclp_digits_calibrated
    python -m launch.run --config=ml_collections_configs/xclp_digits.py --workdir=runs/xclp_digits_fedavg \
        --config.baselines=fedavg
"""

from collections.abc import Callable

import _xclp_prediction
from ml_collections import ConfigDict

from jaxfed.config import base


def get_config(variant: str = "") -> ConfigDict:
    """XCLP and label propagation inside clients, with the paper's settings and with `auto`'s.

    Variants, which have the one or the other: smoke; tuned, every method at settings chosen by
    cross-validation over the labeled points, in a sweep beside the given ones; auto, XCLP and label
    propagation at settings chosen by leave-one-out; privacy, a sweep over budgets of randomized response;
    late, half and all of the unlabeled points come after the graph is made, beside none, over shares of
    labels; calibrated, confidences by leave-one-out beside line 16's, over the same.
    """
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
    config.dataset.name = "digits"
    config.rounds, config.evaluate_every = 100, 10  # of methods that train; labeling is one round
    config.client_knn.num_neighbors = 1  # a client has 1.4 labels a class
    if not variant:
        base.beside_auto(config, ("xclp", "per_client_lp"))
        config.baselines = (
            *("xclp_auto", "per_client_lp", "per_client_lp_auto"),
            *("client_knn", "pooled_lp"),
        )
    return base.apply_variants(
        config,
        variant,
        {"privacy": _xclp_prediction.privacy, "late": _late, "calibrated": _calibrated},
    )


def _late(config: ConfigDict) -> None:
    for name, fraction in (("xclp_half_late", 0.5), ("xclp_late", 1.0)):
        config[name] = ConfigDict({"algorithm": "xclp", "late_fraction": fraction})
    config.baselines = ("xclp_half_late", "xclp_late", "client_knn", "pooled_lp")


def _calibrated(config: ConfigDict) -> None:
    for algorithm in ("xclp", "pooled_lp"):
        section = {"algorithm": algorithm, "confidence": "calibrated"}
        config[f"{algorithm}_calibrated"] = ConfigDict(section)
    config.baselines = ("xclp_calibrated", "pooled_lp", "pooled_lp_calibrated", "client_knn")


def sweep(add: Callable[..., None], variant: str = "") -> None:
    """Shares of labels, numbers of clients and of bits, one at a time; late: the first alone; or budgets."""
    add = base.beside_tuned(add, variant)
    if "privacy" in variant.split(","):
        _xclp_prediction.privacy_budgets(add)
        return
    for labeled_fraction in (0.02, 0.05, 0.1, 0.2, 0.5):
        add(**{"federation.labeled_fraction": labeled_fraction})
    if {"late", "calibrated"}.intersection(variant.split(",")):
        return
    for num_clients in (2, 5, 10, 20, 50):
        add(**{"federation.num_clients": num_clients})
    for num_bits in (64, 256, 1024, 4096):
        add(**{"xclp.num_bits": num_bits})
