"""XCLP for prediction on handwritten digits: scikit-learn's 1,797 images, nothing to download.

Ten clients share the images at random; a tenth of each client's carry labels, a fifth of all images
are new points to be labeled. XCLP Section 4.1 with the preprocessing function `identity`.

    python -m launch.run --config=ml_collections_configs/xclp_digits.py --workdir=runs/xclp_digits
    python -m launch.sweep --config=ml_collections_configs/xclp_digits.py --workdir=runs/xclp_digits_sweep
"""

from collections.abc import Callable

from ml_collections import ConfigDict

from ml_collections_configs import base

# eps of randomized response, of a bit or of a label; 0, without noise, is the base point.
PRIVACY_BUDGETS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)


def get_config(variant: str = "") -> ConfigDict:
    """Variants: smoke."""
    config = base.get_config()
    config.dataset.name = "digits"
    config.client_knn.num_neighbors = 1  # a client has 1.4 labels a class
    return base.apply_variants(config, variant)


def sweep(add: Callable[..., None]) -> None:
    """The share of labels, the number of clients and of bits, and privacy budgets, one at a time."""
    for labeled_fraction in (0.02, 0.05, 0.1, 0.2, 0.5):
        add(**{"federation.labeled_fraction": labeled_fraction})
    for num_clients in (2, 5, 10, 20, 50):
        add(**{"federation.num_clients": num_clients})
    for num_bits in (64, 256, 1024, 4096):
        add(**{"xclp.num_bits": num_bits})
    for epsilon in PRIVACY_BUDGETS:
        add(**{"xclp.bit_epsilon": epsilon})
        add(**{"xclp.label_epsilon": epsilon})
