"""One client's classifier of scikit-learn's kind: trees, forests, boosting, rules; made, fitted, asked.

What `jaxfed.models` is for networks. Worker processes import this and little else, so there is no JAX here,
and nothing of clients or rounds. `jaxfed.learners` lifts it over clients.
"""
