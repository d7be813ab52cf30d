"""What all operations share: dtypes, devices, in-place forms, derivatives of fused kernels."""
