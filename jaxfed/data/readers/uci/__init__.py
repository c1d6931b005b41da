"""Tables of the UCI Machine Learning Repository, from its original files, prepared as in FedCT.

A file here is one set: `read(folder)`. `jaxfed.data.readers.named` lists them, and only `jaxfed.data` imports
them.
"""
