"""Buffered asynchronous rounds in plain Python: all clients train at a time, client j for `seconds[j]`."""


def arrivals(seconds, size, rounds):
    """[(clients, time, versions)]: who arrives in each round, when it ends, and where each one began."""
    training = {client: (own, 0) for client, own in enumerate(seconds)}  # client -> end, version
    idle, found, time = [], [], 0
    while len(found) < rounds:
        buffer = []
        while len(buffer) < size:
            ended = [client for client, (end, _) in training.items() if end <= time]
            if ended:
                client = min(ended, key=lambda client: (training[client][0], client))
                buffer.append((client, training.pop(client)[1]))
            else:
                training |= {client: (time + seconds[client], len(found)) for client in idle}
                idle = []
                time = min(end for end, _ in training.values())
        buffer.sort()
        clients, versions = zip(*buffer, strict=True)
        found.append((clients, time, versions))
        idle += clients
    return found
