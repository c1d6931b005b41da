"""From a config file to objects: read, checked, assembled into data, clients and methods.

Nothing runs here but what makes the data and their features. Experiments stand on it; no method knows it.
"""
