"""What noise and accountants refuse."""

import math
import sys
from functools import partial
from unittest import mock

import numpy as np
import refusals

from jaxfed import xclp
from jaxfed.privacy import composition
from jaxfed.privacy import randomized_response as rr
from jaxfed.privacy import xor_mechanism as xor
from jaxfed.privacy.composition import EVERYTHING, Poisson, noise_multiplier_of


def without_dp_accounting():
    with mock.patch.dict(sys.modules, dp_accounting=None):
        composition.epsilon_of(1e-5, 1.0, 1, EVERYTHING)
        composition.accounting()


NOISE = {
    "...epsilon=0.0": partial(rr.flip_probability, 0.0),
    "...epsilon=nan": partial(rr.flip_probability, math.nan),
    "...num_classes=1": partial(rr.answer_probabilities, 1.0, 1),
    "...epsilon=-1.0:": partial(rr.answer_probabilities, -1.0, 2),
    "xclp.bit_epsilon=-0.5": partial(xclp.Parameters, num_classes=2, bit_epsilon=-0.5),
    "xclp.label_epsilon=inf": partial(xclp.Parameters, num_classes=2, label_epsilon=math.inf),
    "xclp.seed=-1": partial(xclp.Parameters, num_classes=2, seed=-1),
    "...delta=1.0": partial(composition.epsilon_of, 1.0, 1.0, 1, EVERYTHING),
    "...noise_multiplier=0.0": partial(composition.epsilon_of, 1e-5, 0.0, 1, Poisson(0.1)),
    "epsilon=0.0, releases=1: use": partial(noise_multiplier_of, 0.0, 1e-5, 1, EVERYTHING),
    "...releases=0": partial(noise_multiplier_of, 1.0, 1e-5, 0, EVERYTHING),
    "...target_epsilon=1e-09: no noise": partial(noise_multiplier_of, 1e-9, 1e-12, 99, EVERYTHING),
    "...pip install -r requirements-privacy.txt": without_dp_accounting,
    "...epsilon=inf: use finite": partial(xor.release, np.ones((1, 2), bool), math.inf, 1),
    "...epsilon=0.0: use finite": partial(xor.release, np.ones((1, 2), bool), 0.0, 1),
}

test_refused = refusals.table(NOISE)
