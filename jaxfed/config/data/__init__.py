"""From a config to clients: sources, subsamples, preprocessing, the partition, public examples.

Networks and methods are made in `jaxfed.config.assembly`; the settings themselves stand in
`jaxfed.config.sections`.
"""
