"""One client's training: its data, batches, losses and local steps."""
