"""`LocalNetwork` behind the interface of Flower's grid, with real messages of Flower."""

from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity
from local_network import LocalNetwork

from jaxfed.flower.messages.grid_messages import from_record_dict, to_record_dict
from jaxfed.flower.messages.network import Outgoing

SUPERLINK = 1


class LocalGrid:
    """Flower's `Grid`: `push_messages`, `pull_messages` and `get_node_ids`.

    Args:
        clients: client apps by node, functions of a Message that return a Message.
        faults: as of `LocalNetwork`.
    """

    def __init__(self, clients, faults=None, clock=None):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, SUPERLINK, 1
        self._apps = dict(clients)
        self._requests = {}  # by identifier
        self._current = None
        self.network = LocalNetwork(
            {node: self._app_of(node) for node in self._apps}, faults=faults, clock=clock
        )

    def get_node_ids(self):
        return self.network.nodes()

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids):
        pulled = []
        for identifier in message_ids:
            request = self._requests[identifier]
            for event in self.network.due(identifier):
                if event.record == {}:
                    raise ValueError("a message without its objects")
                if event.record is None:
                    # The text of a client's exception, which nobody may print.
                    content = Error(event.code, "ValueError: SECRET")
                else:
                    content = to_record_dict(event.record)
                reply = Message(content, reply_to=request)
                reply.metadata.__dict__["_src_node_id"] = event.node
                pulled.append(reply)
        return pulled

    def _push(self, message):
        metadata = message.metadata
        assert metadata.message_type == "query"
        self._current = message
        (identifier,) = self.network.send(
            [
                Outgoing(
                    metadata.dst_node_id,
                    from_record_dict(message.content),
                    metadata.ttl,
                    metadata.group_id,
                )
            ]
        )
        if identifier:
            metadata.__dict__["_message_id"] = identifier
            self._requests[identifier] = message
        return identifier

    def _app_of(self, node):
        def client(record):
            given = self._current.metadata
            request = Message(
                to_record_dict(record),
                *(given.dst_node_id, given.message_type),
                ttl=given.ttl,
                group_id=given.group_id,
            )
            return from_record_dict(self._apps[node](request).content)

        return client
