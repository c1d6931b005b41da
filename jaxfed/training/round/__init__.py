"""A whole round: clients' part and server's step in one program, and what a state is worth."""
