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
    """Play the rounds of the config that the run names; an error for users is printed as one line.

    Settings of the run: `config`, FILE.py[:VARIANT]; `overrides`, a JSON list of KEY=VALUE; `workdir`, where
    results go; `server`, a folder with what the server holds (`jaxfed.flower.server.server_data`).
    """
    from jaxfed.config import file
    from jaxfed.errors import UsageError
    from jaxfed.flower.messages.grid_messages import GridNetwork
    from jaxfed.flower.server import server_data, server_run
    from jaxfed.host.interruption import end_with

    # Flower's own way takes a minute, or for ever; the workdir would be in use.
    end_with(os.getppid())
    settings = {key: str(value) for key, value in context.run_config.items()}
    try:
        config = file.load(settings["config"], json.loads(settings["overrides"]))
        held = server_data.read(Path(settings["server"]))
        server_run.serve(GridNetwork(grid), config, Path(settings["workdir"]), held)
    except (UsageError, *server_run.STOPS) as error:
        print(error, flush=True)
