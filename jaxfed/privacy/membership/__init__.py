"""Membership inference: was this example in a model's training set?

An attack maps arrays (losses, probabilities, norms) to one score per example; larger scores indicate members.
`roc` evaluates scores. The training of attacked models and of shadow models is elsewhere (`jaxfed.audit`).
"""
