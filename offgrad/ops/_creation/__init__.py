"""Tensors from data, constants and ranges of numbers. Internal."""
