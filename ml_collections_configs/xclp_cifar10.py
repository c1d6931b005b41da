r"""XCLP for prediction on CIFAR-10: 50,000 training images, 10,000 new ones, ten clients.

Section 4.1 and Appendix B.1 of XCLP with data that anyone can have. `identity` works on pixels, which say
little about these classes; `pretrained` on the features of EfficientNet-Lite0 trained on ImageNet.

    export JAXFED_DATA=DIR    # a TFDS folder with cifar10 in array_record format
    python -m launch.run --config=ml_collections_configs/xclp_cifar10.py:pretrained \
        --workdir=runs/cifar10_pretrained
    python -m launch.sweep --config=ml_collections_configs/xclp_cifar10.py:pretrained,few_labels,tuned \
        --workdir=runs/cifar10_few_labels
    python -m launch.sweep --config=ml_collections_configs/xclp_cifar10.py:pretrained,leave_one_out \
        --workdir=runs/cifar10_leave_one_out
    python -m launch.sweep --config=ml_collections_configs/xclp_cifar10.py:pretrained,graphs \
        --workdir=runs/cifar10_graphs
    python -m launch.sweep --config=ml_collections_configs/xclp_cifar10.py:pretrained,sweeps \
        --workdir=runs/cifar10_sweeps
    python -m launch.sweep --config=ml_collections_configs/xclp_cifar10.py:pretrained,privacy \
        --workdir=runs/cifar10_privacy
"""

import _xclp_prediction
from ml_collections import ConfigDict


def get_config(variant: str = "") -> ConfigDict:
    """Variants: those of `_xclp_prediction.py`."""
    return _xclp_prediction.get_config("cifar10", variant)


sweep = _xclp_prediction.sweep
