"""Arrays on devices: spread over a mesh, padded, and what their programs take."""
