"""The folder that Flower sends to clients as an app: two thin files that call the installed jaxfed."""
