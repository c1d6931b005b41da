"""Steps of XCLP's Algorithm 1, each file one to three of its lines; `jaxfed.xclp.algorithm` composes them."""
