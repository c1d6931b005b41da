"""Whole documents: the report of runs, its HTML page, bounds."""
