"""Convolutions without XLA's convolution operation; `conv` is their entry."""
