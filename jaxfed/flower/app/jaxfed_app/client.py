"""A client of a run: hands each message to the worker of its site, and returns the reply."""

from __future__ import annotations

from multiprocessing.connection import Client

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from jaxfed.flower.messages import grid_messages, records

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Return the answer to a message.

    The worker's address is the node's own setting: a server cannot name another one.
    """

    def perform(request: records.Record) -> records.Record:
        with Client(str(context.node_config["worker"]), "AF_UNIX") as worker:
            worker.send_bytes(records.to_bytes(request))
            return records.from_bytes(worker.recv_bytes())

    return grid_messages.answered(message, perform)
