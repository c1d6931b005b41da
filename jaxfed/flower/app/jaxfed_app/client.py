"""A client of a run: answers each message from the folder that its node was started with."""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Return the answer to a message.

    The folder is the node's own setting: a server cannot name another one.
    """
    called = time.perf_counter()
    from jaxfed.flower.client.client_run import answer as answer_from

    return answer_from(message, Path(str(context.node_config["data"])), called=called)
