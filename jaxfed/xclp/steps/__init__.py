"""The steps of Algorithm 1, one to three lines of it a file; `jaxfed.xclp.algorithm` composes them."""
