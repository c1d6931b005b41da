"""One client's classifier with scikit-learn's interface: trees, forests, boosting, rules.

The counterpart of `jaxfed.models` for networks. Worker processes import this and little else, so it contains
no JAX, and nothing about clients or rounds. `jaxfed.learners` extends it to many clients.
"""
