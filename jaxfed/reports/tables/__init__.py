"""Tables of results: methods against settings, differences paired by seed, names."""
