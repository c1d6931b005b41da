"""XCLP for prediction on handwritten digits: scikit-learn's 1,797 images, nothing to download.

Ten clients share the images at random; a tenth of each client's carry labels, a fifth of all images
are new points to be labeled. XCLP Section 4.1 with the preprocessing function `identity`.

    python -m launch.run --config=ml_collections_configs/xclp_digits.py --workdir=runs/xclp_digits
"""

from ml_collections import ConfigDict

from ml_collections_configs import base


def get_config(variant: str = "") -> ConfigDict:
    """Variants: smoke."""
    config = base.get_config()
    config.dataset.name = "digits"
    return base.apply_variants(config, variant)
