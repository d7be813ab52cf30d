"""`offgrad warmup`: all kernels compiled ahead, in parallel processes."""
