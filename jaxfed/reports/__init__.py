"""Tables, plots and pages from the workdirs of runs and sweeps.

It reads workdirs only. No lower layer imports it.
"""
