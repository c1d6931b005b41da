"""Tables of the UCI Machine Learning Repository, from its own files, prepared as FedCT prepares them.

A file here is one set: `read(folder)`. `jaxfed.data.named` lists them, and only `jaxfed.data` imports them.
"""
