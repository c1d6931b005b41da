"""Who holds what, who takes part, how clients are executed, what is sent, and what a method is.

No training and no method; secure protocols count their bytes with what is here. All wings above import it.
"""
