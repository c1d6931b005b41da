"""Pages for people, and `docs.generate`, which builds a site of them."""
