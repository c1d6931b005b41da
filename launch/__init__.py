"""Command-line entries: run, sweep, bench, report. Each is short; the work is in `jaxfed`."""
