"""Runs of Weights & Biases: one a method and repeat, grouped by experiment, with the method as job type.

Nothing is uploaded that was not asked for. Where `wandb login` has been done (or WANDB_API_KEY is set),
runs go to the project "jaxfed" of that account. Elsewhere, and with WANDB_MODE=offline, they stay in
./wandb, without a question on the terminal, until `wandb sync`. Either way a run consists of config and
metrics: no console output, no code, no diff of the repository, no list of packages, no system metrics.

A resumed run continues the run of the same id. Of an offline one it writes a second folder, with the further
rounds; `wandb sync` puts both together.
"""

from __future__ import annotations

import os
from typing import Any

from jaxfed.experiment.tracking.tracker import TrackedRun

_INIT_TIMEOUT = 30.0  # seconds of waiting for a server; without one the tracker has failed
_FINISH_TIMEOUT = 60.0  # seconds of waiting for uploads at the end of each run; later, `wandb sync`


class WeightsAndBiases:
    """Tracker that logs to Weights & Biases.

    Args:
        **init: arguments of `wandb.init` in place of those here, such as `project`, `entity`, `tags`, `mode`.
    """

    name = "wandb"

    def __init__(self, **init: Any) -> None:
        self._init = init

    def start(self, run: TrackedRun) -> None:
        """Begin or continue a run; offline without an account."""
        os.environ.setdefault(
            "WANDB_ERROR_REPORTING", "false"
        )  # of wandb's own errors, to its makers
        import wandb

        mode = self._init.get("mode", os.environ.get("WANDB_MODE"))
        # With a run of the user's own in this process, wandb.login would refuse.
        if mode is None and wandb.run is None and not wandb.login(prompt=False, verify=False):
            mode = "offline"
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            quiet=True,
            init_timeout=_INIT_TIMEOUT,
            finish_timeout=_FINISH_TIMEOUT,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        usual = {
            "project": os.environ.get("WANDB_PROJECT", "jaxfed"),
            "group": run.experiment,
            "job_type": run.method,
            "name": run.name,
            "id": run.id,
            "config": dict(run.config),
            "allow_val_change": True,  # a resumed run may have another memory limit
            "mode": mode,
            "resume": None if mode == "offline" else "allow",
            "reinit": "create_new",
            "settings": settings,
        }
        self._run = wandb.init(**{**usual, **self._init})
        if self._run.offline:
            run.tell(
                "wandb is offline: runs stay in ./wandb until `wandb login` and `wandb sync`; "
                "after a login new runs are uploaded"
            )
        else:
            run.tell(f"wandb uploads config and metrics to {self._run.project_url}")

    def log(self, round_number: int, metrics: dict[str, float]) -> None:
        """Log a step."""
        self._run.log(metrics, step=round_number)

    def finish(self, summary: dict[str, float] | None) -> None:
        """Set the run's summary and end it; an interrupted run counts as failed until it resumes."""
        if summary is not None:
            self._run.summary.update(summary)
        self._run.finish(exit_code=0 if summary is not None else 1)
