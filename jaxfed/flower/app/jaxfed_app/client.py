"""A client of a run: hands each message to the worker of its site, and returns the reply."""

from __future__ import annotations

from functools import partial

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from jaxfed.flower.messages import grid_messages

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Return the answer to a message.

    The worker's address is the node's own setting: a server cannot name another one.
    """
    address = str(context.node_config["worker"])
    return grid_messages.answered(message, partial(grid_messages.asked, address))
