"""Results to read: tables beside the papers' numbers, plots, one self-contained HTML page."""
