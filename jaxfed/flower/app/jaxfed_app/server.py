"""The server of a run: reads the run's settings and plays its rounds."""

from __future__ import annotations

import json
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the rounds of the config that the run names.

    Settings of the run: `config`, FILE.py[:VARIANT]; `overrides`, a JSON list of KEY=VALUE; `workdir`, where
    results go; `server`, a folder with what the server holds (`jaxfed.flower.deployment.dealing`).
    """
    from jaxfed.config import file
    from jaxfed.flower.server.server_run import run
    from jaxfed.host.interruption import end_with

    end_with(
        os.getppid()
    )  # Flower's own way takes a minute, or for ever; the workdir would be in use
    settings = {key: str(value) for key, value in context.run_config.items()}
    config = file.load(settings["config"], json.loads(settings["overrides"]))
    run(grid, config, Path(settings["workdir"]), held=Path(settings["server"]))
