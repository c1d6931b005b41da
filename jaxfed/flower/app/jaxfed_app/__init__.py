"""ServerApp and ClientApp of jaxfed."""
