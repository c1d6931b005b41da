"""A client's side: its folder, its answer to one message, and the state it keeps."""
