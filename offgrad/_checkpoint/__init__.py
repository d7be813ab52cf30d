"""Files of PyTorch's zip format, written and read with the standard library."""
