"""The server: Flower's FedAvg, and the accuracy on the server's test examples after the last round."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the rounds; write the time of each round's end, and the accuracy, to the file `out`."""
    settings: dict[str, Any] = dict(context.run_config)
    sizes = settings["features"], settings["hidden"], settings["classes"]
    draw = np.random.default_rng(0)
    weights = [
        array
        for rows, columns in pairwise(sizes)
        for array in (
            draw.normal(0, (2 / rows) ** 0.5, (rows, columns)).astype(np.float32),
            np.zeros(columns, np.float32),
        )
    ]
    out = Path(settings["out"])
    with np.load(out.parent / "server" / "test.npz") as arrays:
        x = arrays["x"].reshape(len(arrays["x"]), -1).astype(np.float32)
        x = (x - settings["mean"]) / settings["deviation"]
        y = arrays["y"]
    ends: list[float] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        first, first_bias, second, second_bias = arrays.to_numpy_ndarrays()
        logits = np.maximum(x @ first + first_bias, 0) @ second + second_bias
        if server_round:
            ends.append(time.time())
        accuracy = float((logits.argmax(1) == y).mean())
        out.write_text(json.dumps({"ends": ends, "accuracy": accuracy}))
        return MetricRecord({"accuracy": accuracy})

    FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3).start(
        grid,
        ArrayRecord(weights),
        num_rounds=settings["rounds"],
        train_config=ConfigRecord({}),
        evaluate_fn=evaluate,
    )
