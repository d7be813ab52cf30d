"""Functions of batched tensors: how `vmap` computes all samples at once."""
