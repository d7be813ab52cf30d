"""Helpers of all operations: dtypes, devices, in-place forms, derivatives of fused kernels."""
