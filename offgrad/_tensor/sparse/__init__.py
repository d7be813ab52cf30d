"""Internal: sparse tensors, which a program imports when it makes the first one."""
