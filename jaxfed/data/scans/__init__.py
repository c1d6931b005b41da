"""Medical images that FedCT is tested on, from the files that their authors publish.

A file here is one set: `read(folder)`. `jaxfed.data.named` lists them, and only `jaxfed.data` imports them.
"""
