"""Privacy mechanisms that add noise, and attacks that measure the remaining leakage.

Secure protocols are in `jaxfed.secure`; `jaxfed.xclp` decides which party adds noise, and when.
"""
