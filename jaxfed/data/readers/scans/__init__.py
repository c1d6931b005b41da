"""Medical images, those of FedCT's experiments and ISIC 2018, read from the publishers' files.

A file here is one set: `read(folder)`. `jaxfed.data.readers.named` lists them, and only `jaxfed.data` imports
them.
"""
