"""From a config file to objects: read, checked, assembled into data, clients and methods.

The only computation here prepares the data and their features. Experiments build on it; no method knows it.
Whatever a config says wrong is a `UsageError`: one line with the key, its value and what to write.
"""
