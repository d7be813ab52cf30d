"""Discrete Fourier transforms: the functions of `offgrad.fft`."""
