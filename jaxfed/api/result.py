"""Results of an experiment, read from its workdir: tables, predictions, trained models."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from jaxfed.api.predictor import Predictor, Step, feature_steps, method_and_form, step_of
from jaxfed.config.check import check
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.keys import flatten
from jaxfed.errors import UsageError, suggestion
from jaxfed.experiment.run.simulate import Simulated
from jaxfed.experiment.store import data_form
from jaxfed.experiment.store.data_form import DataForm
from jaxfed.experiment.store.records import PREDICTED, read_metrics, read_predictions, read_run
from jaxfed.experiment.store.workdir import Workdir
from jaxfed.federation.algorithm import FederatedAlgorithm, ServerState
from jaxfed.federation.clients import Federation
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.safe_files import guarded

ResultTable = Any  # pandas.DataFrame, which is imported on use


class Result:
    """The files of a finished experiment.

    Attributes:
        workdir: the folder of the files.
        config: as resolved.
        summary: summary.json.
    """

    def __init__(self, workdir: Path, config: ConfigDict, summary: dict[str, Any]) -> None:
        self.workdir, self.config, self.summary = workdir, config, summary
        self._files = Workdir(workdir)

    def __repr__(self) -> str:
        """One line: where, and the accuracy of each method."""
        accuracies = (
            f"{name} {metrics['test_accuracy'].mean:.4f}"
            for name, metrics in read_run(self.workdir).results.items()
            if "test_accuracy" in metrics
        )
        return f"Result({self.workdir}: {', '.join(accuracies)})"

    @property
    def methods(self) -> tuple[str, ...]:
        """The method and its baselines."""
        return (self.config.algorithm, *self.config.baselines)

    @property
    def diverged(self) -> tuple[str, ...]:
        """A line for each method and repeat whose loss was no longer finite."""
        return tuple(self.summary.get("diverged", ()))

    @property
    def failed(self) -> tuple[str, ...]:
        """A line for each method and repeat without a model, or whose last round failed at all clients."""
        return tuple(self.summary.get("failed", ()))

    @property
    def results(self) -> ResultTable:
        """Final metrics, one row per method and metric: mean, std over repeats, each repeat's value."""
        rows = [
            {"algorithm": name, "metric": metric}
            | {key: getattr(measured, key) for key in ("mean", "std", "values")}
            for name, metrics in read_run(self.workdir).results.items()
            for metric, measured in metrics.items()
        ]
        return table(rows)

    @property
    def metrics(self) -> ResultTable:
        """metrics.jsonl, one row per round; nested names are joined by dots."""
        return table(dict(flatten(record)) for record in read_metrics(self.workdir))

    def predictions(self, method: str | None = None, repeat: int = 0) -> ResultTable:
        """One row per labeled or tested point (`jaxfed.experiment.run.save_outputs`)."""
        name = self._named(method, repeat)
        rows = read_predictions(self.workdir, name, repeat)
        if rows is None:
            raise UsageError(
                f"no predictions of {name!r} in {self.workdir}; the method diverged, or has no function "
                "`predictions`"
            )
        with guarded(self._files.predictions(name, repeat)):
            return table([{key: PREDICTED[key](text) for key, text in row.items()} for row in rows])

    def model(self, method: str | None = None, repeat: int = 0, *, last: bool = False) -> Step:
        """Return a method's trained model: x -> probabilities, float32 [n, C], of examples [n, ...].

        The examples are as clients held them: preprocessed.

        Args:
            method: of the experiment; None is its first.
            repeat: its number.
            last: the state after the last round, not the one that validation selected.

        Raises:
            UsageError: a method that trains no model; one that diverged.
        """
        algorithm, state, federation = self._restored("model", method, repeat, last=last)
        return Simulated(algorithm, federation, state, state, {}, []).predict

    def predictor(
        self, method: str | None = None, repeat: int = 0, *, last: bool = False
    ) -> Predictor:
        """Return a method's trained model as a function of raw rows, which `save` writes.

        Arguments as for `model`. Rows are what the reader of the data set takes: dicts, data frames or lines
        of a table, files or PIL images of a folder of images, arrays elsewhere. They are encoded and
        preprocessed as in the run.

        Raises:
            UsageError: a method that trains no model; one that diverged; the run's data are not there.
        """
        algorithm, state, federation = self._restored("predictor", method, repeat, last=last)
        name, form = self._named(method, repeat), self._source
        steps: tuple[Step, ...] = (step_of(algorithm, state),)
        if isinstance(form, Simulation):
            folder = self._files.preprocessing(repeat)
            steps = (*feature_steps(self.config, form, repeat, folder), *steps)
            encoding = form.row_encoding(self.config.seed + repeat)
            form = DataForm.of(tuple(form.names["classes"]), federation, encoding)
        return Predictor(self.config, name, repeat, form, state, steps)

    def _restored(
        self, asked: str, method: str | None, repeat: int, *, last: bool = False
    ) -> tuple[FederatedAlgorithm, ServerState, Federation]:
        """Return a method, the state that the run has saved, and the clients."""
        name, federation = self._named(method, repeat), self.federation(repeat)
        try:
            algorithm, form = method_and_form(self.config, name, repeat, federation, last=last)
        except UsageError as error:
            raise UsageError(f"{asked}({name!r}): {error}") from error
        folder = self._files.final_state(name, repeat, last=last)
        self._files.check(folder)
        saved = Checkpoints(folder).latest()
        if saved is None:
            raise UsageError(f"{asked}({name!r}): {folder} holds no state; the method diverged")
        return algorithm, saved.state(template=form), federation

    def federation(self, repeat: int = 0) -> Federation:
        """The clients of a repeat, as the methods received them."""
        folder = self._files.preprocessing(repeat)
        self._files.check(folder)
        return self._source.federation(self.config.seed + repeat, folder=folder)

    @cached_property
    def _source(self) -> Simulation | DataForm:
        """Data set of the run, as it was then; for a network run, what its server knew of the clients' data.

        Raises:
            UsageError: a name in the config that nobody has registered; data that are missing or others.
        """
        check(self.config)
        if (form := data_form.read(self.workdir)) is not None:
            return form
        simulation = Simulation(self.config)
        self._files.check_data(simulation.data_checksums())
        return simulation

    def _named(self, method: str | None, repeat: int) -> str:
        name = self.config.algorithm if method is None else method
        if name not in self.methods:
            raise UsageError(
                f"{name!r}: no method of this experiment{suggestion(name, self.methods)}"
            )
        if not 0 <= repeat < self.config.num_repeats:
            raise UsageError(f"repeat={repeat}: use 0 to {self.config.num_repeats - 1}")
        return name


def table(rows: Iterable[dict[str, Any]]) -> ResultTable:
    """The rows as a data frame; a `UsageError` without pandas, which the wheel's core does not bring."""
    try:
        import pandas
    except ImportError as error:
        raise UsageError("pandas is not installed; pip install pandas, or jaxfed[lab]") from error
    return pandas.DataFrame(list(rows))
