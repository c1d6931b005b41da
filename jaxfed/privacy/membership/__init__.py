"""Membership inference: was this example among those that a model was trained on? One attack a file.

An attack makes of arrays (losses, probabilities, norms) one score an example, larger where it takes it for a
member. `roc` says how well scores tell. Who trains the models that are attacked, or shadow models, is none of
its matter.
"""
