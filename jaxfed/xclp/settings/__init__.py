"""Settings of XCLP and of label propagation: fields, defaults and rules, and the steps that they name.

Allowed values and what they reveal to whom are here, not what they do. All of `jaxfed.xclp` may import it.
"""
