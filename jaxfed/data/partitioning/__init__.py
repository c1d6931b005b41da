"""The partition of examples among clients; `partition` is its entry."""
