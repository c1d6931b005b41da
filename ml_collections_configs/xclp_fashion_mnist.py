r"""XCLP for prediction on Fashion-MNIST: 60,000 training images, 10,000 new ones, ten clients.

Section 4.1 and Appendix B.1 of XCLP with data that anyone can have. `identity` works on pixels;
`pretrained` on the features of EfficientNet-Lite0 trained on ImageNet, extracted once and cached.

    export JAXFED_DATA=DIR    # a TFDS folder with fashion_mnist in array_record format
    python -m launch.run --config=ml_collections_configs/xclp_fashion_mnist.py \
        --workdir=runs/fashion_mnist
    python -m launch.run --config=ml_collections_configs/xclp_fashion_mnist.py:pretrained \
        --workdir=runs/fashion_mnist_pretrained
    python -m launch.sweep --config=ml_collections_configs/xclp_fashion_mnist.py:pretrained,few_labels,tuned \
        --workdir=runs/fashion_mnist_few_labels
    python -m launch.sweep --config=ml_collections_configs/xclp_fashion_mnist.py:sweeps \
        --workdir=runs/fashion_mnist_sweeps
    python -m launch.sweep --config=ml_collections_configs/xclp_fashion_mnist.py:many_clients \
        --workdir=runs/fashion_mnist_many_clients
    python -m launch.sweep --config=ml_collections_configs/xclp_fashion_mnist.py:pretrained,privacy \
        --workdir=runs/fashion_mnist_privacy
"""

import _xclp_prediction
from ml_collections import ConfigDict


def get_config(variant: str = "") -> ConfigDict:
    """Variants: those of `_xclp_prediction.py`."""
    return _xclp_prediction.get_config("fashion_mnist", variant)


sweep = _xclp_prediction.sweep
