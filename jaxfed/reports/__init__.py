"""Tables, plots and pages of what runs and sweeps left on disk.

Reads workdirs only. Nothing below imports it.
"""
