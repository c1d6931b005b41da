"""Check that every round number in the config exists."""

from __future__ import annotations

from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.errors import UsageError


def check_rounds(config: ConfigDict) -> None:
    """Check the rounds of an audit and the round in which teachers vote.

    Raises:
        UsageError: a round is later than the last one.
    """
    if max(config.audit.rounds, default=0) > config.rounds:
        raise UsageError(
            key="config.audit.rounds",
            value=config.audit.rounds,
            allowed=f"use rounds from 1 to rounds={config.rounds}",
        )
    for name in methods.chosen(config):
        last = methods.all_keywords(config, name).get("teacher_rounds", 0)
        if last > config.rounds:
            wrong = f"at most rounds={config.rounds}, or nobody votes and there is no student"
            raise UsageError(wrong, key=f"config.{name}.teacher_rounds", value=last)
