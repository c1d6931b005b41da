"""From a config file to objects: read, checked, assembled into data, clients and methods.

Nothing runs here but what makes the data. `jaxfed.experiment` and the launcher import it.
"""
