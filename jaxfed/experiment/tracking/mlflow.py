"""Runs of MLflow: one a method and repeat, in the experiment "jaxfed", with tags to group and search by.

Config entries are params, numbers of rounds are metrics, and `final/` has those of summary.json. Runs go
where MLflow's other runs go: to MLFLOW_TRACKING_URI, or to MLflow's own files in the current folder.
MLflow's report of usage to its makers is turned off (MLFLOW_DISABLE_TELEMETRY), unless the variable is set.

A resumed run continues the run with its tag `jaxfed.id`.
"""

from __future__ import annotations

import os
import time

from jaxfed.experiment.tracking.tracker import TrackedRun

_LONGEST = 500  # characters of a param's value, in every version of MLflow
_MOST = 100  # params in a request


class MLflow:
    """Tracker that logs to MLflow.

    Args:
        experiment: its name; None is MLFLOW_EXPERIMENT_NAME, or "jaxfed".
        tracking_uri: None is MLflow's own.
    """

    name = "mlflow"

    def __init__(self, experiment: str | None = None, tracking_uri: str | None = None) -> None:
        self._experiment, self._uri = experiment, tracking_uri

    def start(self, run: TrackedRun) -> None:
        """Create a run with its params, or continue it."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = client = mlflow.MlflowClient(self._uri)
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "jaxfed")
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name)
        found = client.search_runs([experiment], f"tags.`jaxfed.id` = '{run.id}'", max_results=1)
        self._time, self._round = run.started, run.last_round
        if found:
            self._id = found[0].info.run_id
            client.update_run(self._id, status="RUNNING")
        else:
            tags = {
                "jaxfed.id": run.id,
                "jaxfed.experiment": run.experiment,
                "method": run.method,
                "repeat": str(run.repeat),
            }
            begun = int(1000 * run.started)
            made = client.create_run(experiment, start_time=begun, tags=tags, run_name=run.name)
            self._id = made.info.run_id
        params = [Param(key, str(value)[:_LONGEST]) for key, value in run.config.items()]
        if run.last_round >= 0:
            params = []  # they are there; MLflow refuses a changed one, such as another memory limit
        for first in range(0, len(params), _MOST):
            client.log_batch(self._id, params=params[first : first + _MOST])
        run.tell(f"mlflow logs to {mlflow.get_tracking_uri() if self._uri is None else self._uri}")

    def log(self, round_number: int, metrics: dict[str, float]) -> None:
        """Log a step, dated by the seconds that rounds took."""
        self._time += metrics.get("seconds", 0.0)
        self._round = round_number
        when = int(1000 * self._time)
        self._client.log_batch(
            self._id,
            metrics=[self._metric(name, v, when, round_number) for name, v in metrics.items()],
        )

    def finish(self, summary: dict[str, float] | None) -> None:
        """Log `final/` metrics and end the run; KILLED if the experiment was interrupted."""
        if summary is not None:
            self.log(self._round, {f"final/{name}": value for name, value in summary.items()})
        status = "FINISHED" if summary is not None else "KILLED"
        self._client.set_terminated(self._id, status=status, end_time=int(1000 * time.time()))
