"""Options of networks from the command line: over every network, whatever is wrong is one line."""

import inspect
from collections.abc import Sequence
from typing import Annotated, Literal, get_args, get_origin

import numpy as np
import pytest

from jaxfed.config import file
from jaxfed.config.build.networks import make_model
from jaxfed.config.checks import check
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.model_options import check_options, defaults
from jaxfed.data import Partition
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.models import MODELS

CONFIG = "ml_collections_configs/fedavg_xclp.py"
OPTIONS = [(name, option) for name, factory in MODELS.items() for option in defaults(factory)]
WRONG = {
    bool: (1, "yes", None),
    int: (0, -3, 2.0, True, "16", (16,), None),
    Annotated: (-1, 0.0, False, "16", (16,), None),
    float: (-0.1, 1.1, float("nan"), "0.9", True, (0.9,), None),
    Sequence[int]: (16, "16", (0,), (16, 2.0), ("16",), ((16,),), None),
    Literal: ("other", "", 1, None, ("batch",)),
}
TOLD = {
    bool: "true or false",
    int: "integers from 1 on",
    float: "numbers from 0 to 1",
    Sequence[int]: "lists of integers from 1 on",
}


def hint(name, option):
    return inspect.signature(MODELS[name], eval_str=True).parameters[option].annotation


@pytest.mark.parametrize("name", MODELS)
def test_defaults_are_allowed_and_other_keys_are_not(name):
    options = defaults(MODELS[name])
    assert "convolution" not in options
    check_options(name, MODELS[name], options)
    for key in ("depth", "num_classes", "input_shape", "convolution"):
        with pytest.raises(UsageError, match=rf"^config\.model\.{key}: unknown key of {name}"):
            check_options(name, MODELS[name], {key: 3})


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_wrong_values_are_one_line(name, option):
    kind = hint(name, option)
    for value in WRONG[get_origin(kind) if get_origin(kind) in (Literal, Annotated) else kind]:
        with pytest.raises(UsageError) as caught:
            check_options(name, MODELS[name], {option: value})
        message = str(caught.value)
        assert message.startswith(f"config.model.{option}={value!r}: ")
        rule = get_args(kind)[1].allowed if get_origin(kind) is Annotated else ""
        assert TOLD.get(kind, rule or repr(defaults(MODELS[name])[option])) in message
        assert "\n" not in message


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["name=cnn", "hidden=(128,)"], "config.model.hidden=(128,): must be an integer"),
        (["name=cnn", "hidden=many"], "config.model.hidden=many: must be an integer"),
        (
            ["name=cnn", "hidden=-1"],
            "config.model.hidden=-1: use integers from 0 on; 0 is none",
        ),
        (["name=cnn", "depth=3"], "config.model.depth: unknown key of cnn; known are channels, "),
        (["name=cnn", "norm=layer"], "config.model.norm='layer': choose one of 'batch'"),
        (["name=cnn", "channels=16,x"], "config.model.channels=16,x: must be a list such as"),
        (["name=cnn", "channels=(16, -1)"], "config.model.channels=(16, -1): use lists of"),
        (["name=resnet9", "momentum=2"], "config.model.momentum=2.0: use numbers from 0 to 1"),
        (["name=cnn14"], "config.model.name='cnn14': choose one of "),
        (["name=cnn14", "hidden=3"], "config.model.hidden: unknown key of cnn14"),
        (["hidden=3.5"], "config.model.hidden=3.5: must be a list such as"),
        (["hiden=64"], "config.model.hiden: unknown key of mlp, did you mean 'hidden'?"),
    ],
)
def test_mistakes_on_the_command_line(overrides, told):
    with pytest.raises(UsageError) as caught:
        check.check(file.load(CONFIG, [f"model.{text}" for text in overrides]))
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["name=cnn", "norm=group", "groups=3"], "config.model.name='cnn': groups=3 does not"),
        (["name=resnet9", "pools=2,2"], "config.model.name='resnet9': pools=(2, 2): resnet9"),
    ],
)
def test_options_that_a_network_refuses_for_these_examples(overrides, told):
    config = file.load(f"{CONFIG}:smoke", [f"model.{text}" for text in overrides])
    check.check(config)
    with pytest.raises(UsageError) as caught:
        Simulation(config).check()
    assert str(caught.value).startswith(told)


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


def test_examples_that_a_network_cannot_take_name_the_key():
    config = file.load(CONFIG, ["model.name=cnn13"])
    nobody = (np.zeros(0, np.int64),)
    few = Federation(
        np.zeros((0, 8, 8, 1), np.uint8),
        np.zeros(0, np.int32),
        Partition(nobody, nobody, nobody),
        2,
    )
    with pytest.raises(UsageError, match=r"^config\.model\.name='cnn13': cnn13 takes images of 12"):
        make_model(config, few)
