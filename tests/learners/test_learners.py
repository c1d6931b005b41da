"""Learners by name: their keywords, and those of others that are registered."""

import pytest

from jaxfed.errors import UsageError
from jaxfed.learners import LEARNERS


def test_others_are_registered():
    def mine(*, num_classes, depth=3):
        raise NotImplementedError

    try:
        assert LEARNERS.register("mine")(mine) is mine
        assert LEARNERS.from_outside() == ("mine",)
    finally:
        del LEARNERS["mine"]
    with pytest.raises(UsageError, match=r"^learner 'xgboost': is one of jaxfed's own"):
        LEARNERS.register("xgboost")
