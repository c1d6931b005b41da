"""Several processes, worker processes, devices of a host, and work ahead of its use.

Anything with a file is in `jaxfed.host`; the mapping of clients over devices in
`jaxfed.federation.execution`.
"""
