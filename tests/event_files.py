"""TensorBoard's own reader over event files."""

from pathlib import Path


def read(folder):
    """Folder's name below `folder` -> TensorBoard's accumulator, for each folder with event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for place in sorted({file.parent for file in Path(folder).rglob("*tfevents*")}):
        accumulator = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
        accumulator.Reload()
        found[str(place.relative_to(folder))] = accumulator
    return found


def steps(accumulator, tag):
    return [event.step for event in accumulator.Scalars(tag)]
