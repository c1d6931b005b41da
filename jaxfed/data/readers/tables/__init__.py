"""Tables of one or several files: their splits, the interface of all formats, and CSV files."""
