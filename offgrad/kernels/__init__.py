"""Kernels: functions of NumPy arrays that write into arrays given by the caller.

Each kernel is a fused loop compiled by Numba beside its NumPy reference, `_<name>_numpy`, which is
the oracle in tests and runs with OFFGRAD_KERNELS=numpy, without numba, or for 16-bit floats
(computed in float32). Loops serve float32 and float64. Arrays are C-contiguous (attention takes any
strides). Dtypes and shapes alone decide the implementation and the order of its arithmetic: the
same call gives the same bits on any number of threads.

Internal: operations call kernels, users do not. Importing this package neither imports numba nor
compiles anything; the first calls do.
"""

from offgrad.kernels._arrays import sum_axes
from offgrad.kernels._attention import attention, attention_backward
from offgrad.kernels._blas import single_threaded_blas
from offgrad.kernels._cross_entropy import (
    cross_entropy,
    cross_entropy_backward,
    cross_entropy_total_weight,
)
from offgrad.kernels._dropout import dropout, dropout_mask
from offgrad.kernels._embedding import embedding_backward
from offgrad.kernels._gelu import gelu, gelu_backward
from offgrad.kernels._jit import backend, set_backend
from offgrad.kernels._layer_norm import layer_norm, layer_norm_backward
from offgrad.kernels._optimizers import adamw_step, sgd_step
from offgrad.kernels._parallel import get_num_threads, parallel_for, set_num_threads
from offgrad.kernels._reduce import sum_rows
from offgrad.kernels._softmax import (
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
)

__all__ = [
    "adamw_step",
    "attention",
    "attention_backward",
    "backend",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_total_weight",
    "dropout",
    "dropout_mask",
    "embedding_backward",
    "gelu",
    "gelu_backward",
    "get_num_threads",
    "layer_norm",
    "layer_norm_backward",
    "log_softmax",
    "log_softmax_backward",
    "parallel_for",
    "set_backend",
    "set_num_threads",
    "single_threaded_blas",
    "softmax",
    "softmax_backward",
    "sgd_step",
    "sum_axes",
    "sum_rows",
]
