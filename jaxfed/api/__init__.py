"""jaxfed as a library: experiments from notebooks and scripts, by the launcher's own path.

What users import is in `jaxfed` itself. The launcher stands on this wing; nothing below imports it.
"""
