"""Tables of one or several files: their splits, and CSV, Parquet and Arrow files as one interface."""
