"""Whole documents: the report of runs, its HTML page, audits, bounds."""
