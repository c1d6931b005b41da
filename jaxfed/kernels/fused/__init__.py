"""Nearest neighbors in one kernel of an accelerator: distances live and die in its registers.

`search.nearer` is the way in; `gpu` and `tpu` are the kernels, `running_best` what they share. Nobody but
`jaxfed.kernels` imports from here.
"""
