"""Plots as matplotlib figures, in one style."""
