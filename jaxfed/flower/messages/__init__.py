"""Messages: typed records, parameters as records, steps of a run, and how Flower carries them."""
