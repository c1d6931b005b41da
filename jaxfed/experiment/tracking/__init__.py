"""Trackers of experiments: TensorBoard, Weights & Biases, or a class of the user's own.

A tracker receives the lines of metrics.jsonl once the loop has written them, and nothing else: no model, no
data, no code. It is no part of a config. The loop, reports and `jaxfed.run` import from here; the libraries
are imported when a run starts.
"""

from jaxfed.registry import imported_on_use as _imported_on_use

_FILES = {
    "TrackedRun": "tracker",
    "Tracker": "tracker",
    "TensorBoard": "tensorboard",
    "WeightsAndBiases": "wandb",
}

__all__ = [*_FILES]

__getattr__ = _imported_on_use(__name__, _FILES)
