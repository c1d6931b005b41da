"""Sessions: agreed keys, sealed links, one channel, and endpoints that count messages and may drop out.

Protocols of methods are not here; they run over the endpoints of a session.
"""
