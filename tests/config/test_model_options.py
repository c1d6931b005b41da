"""Options of networks from the command line: over every network, whatever is wrong is one line."""

from typing import Any

import pytest
from ml_collections import ConfigDict

from jaxfed.config import check, file
from jaxfed.errors import UsageError
from jaxfed.models import MODELS, options_of
from jaxfed.settings import is_allowed

CONFIG = "ml_collections_configs/fedavg_xclp.py"


@pytest.mark.parametrize("name", MODELS)
def test_defaults_are_allowed_and_other_keys_are_not(name):
    """Hints have the rules, which `tests/test_settings.py` has all of."""
    options = {key: one.default for key, one in options_of(name).items()}
    assert "convolution" not in options
    assert all(is_allowed(options[key], one.hint) for key, one in options_of(name).items())
    assert all(one.hint not in (int, float, Any) for one in options_of(name).values())
    for key in ("size", "num_classes", "input_shape", "convolution"):
        config = file.load(CONFIG)
        config.model = ConfigDict({"name": name, **options, key: 3})
        with pytest.raises(UsageError, match=rf"^config\.model\.{key}: unknown key"):
            check.check(config)


@pytest.mark.parametrize(
    ("overrides", "section"),
    [
        ([], {"name": "mlp", "hidden": (128,)}),
        (["name=mlp"], {"name": "mlp", "hidden": (128,)}),
        (["hidden=64,32"], {"name": "mlp", "hidden": (64, 32)}),
        (["hidden=()"], {"name": "mlp", "hidden": ()}),
        (["name=cnn"], {"name": "cnn"}),
        (["hidden=64", "name=cnn", "norm=group"], {"name": "cnn", "hidden": 64, "norm": "group"}),
        (["name=cnn", "hidden=0"], {"name": "cnn", "hidden": 0}),
        (["name=resnet9", "momentum=0"], {"name": "resnet9", "momentum": 0.0}),
        (["name=fedct_cifar10", "norm=group"], None),
    ],
)
def test_another_network_comes_with_its_own_options(overrides, section):
    config = file.load(CONFIG, [f"model.{text}" for text in overrides])
    check.check(config)
    if section is not None:
        assert config.model.to_dict() == section
