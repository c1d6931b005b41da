"""A client of a run: hands each message to the worker of its site, and returns the reply."""

from __future__ import annotations

import time
from functools import partial

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from jaxfed.flower.messages import grid_messages

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """Return the answer to a message.

    The worker's address is the node's own setting: a server cannot name another one.
    """
    address = str(context.node_config["worker"])
    return grid_messages.answered(message, partial(grid_messages.asked, address))


@app.query("stay")
def stay(message: Message, _: Context) -> Message:
    """Reply with nothing, so that the node asks again at once: without a message it waits for 3 s."""
    time.sleep(0.5)  # while the server makes the next message
    return Message(RecordDict(), reply_to=message)
