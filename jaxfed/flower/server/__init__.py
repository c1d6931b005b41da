"""The server's side: who the clients are, exchanges with deadlines, and the experiment that asks them."""
