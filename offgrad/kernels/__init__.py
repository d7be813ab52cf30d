"""Kernels: functions of NumPy arrays that write into arrays given by the caller.

Each kernel is a fused loop compiled by Numba beside its NumPy reference, `_<name>_numpy`, which is
the oracle in tests and runs with OFFGRAD_KERNELS=numpy or without numba. Loops serve float32 and
float64; 16-bit floats are converted to float32, and results rounded once (`_halves`). Where
NumPy's own functions are vectorised, a kernel is these over pieces that stay in a core's cache, on
several threads (`_chunks`); small arrays take one call. Arrays are C-contiguous (attention takes
any strides). Dtypes and shapes alone decide the implementation and the order of its arithmetic:
the same call gives the same bits on any number of threads.

Internal: operations call kernels, users do not. Importing this package neither imports numba nor
compiles anything; the first calls do. The first use of a kernel imports its file.
"""

import sys as _sys
import typing as _typing

from offgrad_storage._imports import lazy as _lazy

# Their locks precede those of sessions in `memory.forks`, so they are imported at once.
from offgrad.kernels._blas import single_threaded_blas
from offgrad.kernels._jit import backend, set_backend
from offgrad.kernels._parallel import get_num_threads, parallel_for, set_num_threads
from offgrad.memory.allocator import set_copier as _set_copier

if _typing.TYPE_CHECKING or not _lazy(__name__):
    from offgrad.kernels._activations import (
        glu,
        glu_backward,
        log_sigmoid,
        log_sigmoid_backward,
        mish,
        mish_backward,
        quadratic_backward,
        sigmoid,
        silu,
        silu_backward,
        softplus,
        softplus_backward,
    )
    from offgrad.kernels._along_dim import (
        add_at,
        are_within,
        gather,
        scatter,
        scatter_add,
        scatter_reduce,
    )
    from offgrad.kernels._arithmetic import LOOPS as ARITHMETIC
    from offgrad.kernels._arithmetic import add_product, add_scaled, in_place, may_be_in_place
    from offgrad.kernels._arrays import is_half
    from offgrad.kernels._attention import attention, attention_backward
    from offgrad.kernels._batch_norm import batch_norm, batch_norm_backward
    from offgrad.kernels._bessel import (
        i0,
        i0_backward,
        i0e,
        i0e_backward,
        i1,
        i1_backward,
        i1e,
        i1e_backward,
    )
    from offgrad.kernels._chunks import (
        elementwise,
        elementwise_flat,
        fill_where,
        in_chunks,
        is_large,
        keep_where,
        scratch,
    )
    from offgrad.kernels._conv import convolve, convolve_transposed, convolve_weight
    from offgrad.kernels._conv_numpy import Steps, add_columns, columns
    from offgrad.kernels._copy import copy_into
    from offgrad.kernels._cross_entropy import (
        cross_entropy,
        cross_entropy_backward,
        cross_entropy_total_weight,
    )
    from offgrad.kernels._ctc import Targets as CtcTargets
    from offgrad.kernels._ctc import ctc_loss, ctc_loss_backward
    from offgrad.kernels._ctc import states as ctc_states
    from offgrad.kernels._cumsum import cumsum
    from offgrad.kernels._deviations import squared_deviations
    from offgrad.kernels._distances import distances, distances_backward, euclidean_distances
    from offgrad.kernels._dropout import dropout, dropout_mask
    from offgrad.kernels._elementary import elementary, rsqrt
    from offgrad.kernels._embedding import embedding_backward, embedding_bag
    from offgrad.kernels._entropy import entr, entr_backward, xlogy
    from offgrad.kernels._gamma import digamma, lgamma, lgamma_backward, trigamma
    from offgrad.kernels._gelu import gelu, gelu_backward
    from offgrad.kernels._gradients import scale_all, sum_of_squares
    from offgrad.kernels._grid_sample import Sampling, grid_sample, grid_sample_backward
    from offgrad.kernels._group_norm import group_norm, group_norm_backward
    from offgrad.kernels._halves import convert
    from offgrad.kernels._layer_norm import layer_norm, layer_norm_backward
    from offgrad.kernels._losses import (
        PairLoss,
        are_probabilities,
        binary_cross_entropy,
        binary_cross_entropy_with_logits,
        huber,
        mse,
        smooth_l1,
        soft_margin,
    )
    from offgrad.kernels._max_pool import (
        Windows,
        code_dtype,
        max_pool,
        max_pool_backward,
        places,
    )
    from offgrad.kernels._normal import (
        erfcx,
        erfcx_backward,
        log_ndtr,
        log_ndtr_backward,
        ndtr,
        ndtr_backward,
    )
    from offgrad.kernels._optimizers import adamw_step, adamw_steps, sgd_step, sgd_steps
    from offgrad.kernels._optimizers_matrices import adafactor_step, muon_step
    from offgrad.kernels._optimizers_moments import (
        adamax_steps,
        nadam_momentum,
        nadam_steps,
        radam_steps,
    )
    from offgrad.kernels._optimizers_rates import (
        adadelta_steps,
        adagrad_steps,
        asgd_steps,
        rmsprop_steps,
        rprop_steps,
    )
    from offgrad.kernels._piecewise import elu, elu_backward, logit_backward, two_slopes_backward
    from offgrad.kernels._prelu import prelu, prelu_backward
    from offgrad.kernels._products import DIRECT_COST, allow_split_products, matmul
    from offgrad.kernels._rectifiers import (
        angle,
        clip,
        hardsigmoid,
        hardswish,
        hardswish_backward,
        lerp,
        relu,
        relu_backward,
        shrink,
        sign,
        threshold,
    )
    from offgrad.kernels._recurrent import (
        TimeSteps,
        gru,
        gru_backward,
        lstm,
        lstm_backward,
        rnn,
        rnn_backward,
    )
    from offgrad.kernels._reduce import (
        arg_extreme,
        in_parts,
        log_sum_exp,
        log_sum_exp_backward,
        prod_axes,
        reduce_axes,
        sum_axes,
        sum_rows,
    )
    from offgrad.kernels._resample import Taps, resample
    from offgrad.kernels._rms_norm import rms_norm, rms_norm_backward
    from offgrad.kernels._rows import add_rows, take_rows
    from offgrad.kernels._scans import (
        cumprod,
        has_scans,
        log_cumsum_exp,
        recurrence,
        running_extreme,
    )
    from offgrad.kernels._select import nan_to_zero, select
    from offgrad.kernels._softmax import (
        log_softmax,
        log_softmax_backward,
        softmax,
        softmax_backward,
    )
    from offgrad.kernels._softmax_planes import (
        MIN_LENGTH,
        log_sum_exp_planes,
        scaled_softmax_planes,
        softmax_planes,
        softmax_planes_backward,
    )
    from offgrad.kernels._sort import sorted_indices
    from offgrad.kernels._special import (
        erf,
        erfc,
        erfinv,
        floor_divide,
        fmod,
        hypot,
        remainder,
    )
    from offgrad.kernels._triangles import triangle

from offgrad.memory import meta as _meta_arrays

__all__ = [
    "ARITHMETIC",
    "CtcTargets",
    "DIRECT_COST",
    "MIN_LENGTH",
    "PairLoss",
    "Sampling",
    "add_product",
    "add_scaled",
    "Steps",
    "TimeSteps",
    "Taps",
    "Windows",
    "adadelta_steps",
    "adafactor_step",
    "adagrad_steps",
    "adamax_steps",
    "adamw_step",
    "adamw_steps",
    "add_columns",
    "add_at",
    "add_rows",
    "allow_split_products",
    "angle",
    "are_probabilities",
    "are_within",
    "arg_extreme",
    "asgd_steps",
    "attention",
    "attention_backward",
    "backend",
    "batch_norm",
    "batch_norm_backward",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "clip",
    "columns",
    "convert",
    "convolve",
    "convolve_transposed",
    "convolve_weight",
    "code_dtype",
    "copy_into",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_total_weight",
    "ctc_loss",
    "ctc_loss_backward",
    "ctc_states",
    "cumprod",
    "cumsum",
    "digamma",
    "distances",
    "distances_backward",
    "dropout",
    "dropout_mask",
    "elementary",
    "elementwise",
    "elementwise_flat",
    "elu",
    "elu_backward",
    "embedding_backward",
    "embedding_bag",
    "entr",
    "entr_backward",
    "erf",
    "erfc",
    "erfcx",
    "erfcx_backward",
    "erfinv",
    "euclidean_distances",
    "gather",
    "gelu",
    "gelu_backward",
    "get_num_threads",
    "glu",
    "glu_backward",
    "grid_sample",
    "grid_sample_backward",
    "group_norm",
    "group_norm_backward",
    "fill_where",
    "floor_divide",
    "fmod",
    "gru",
    "gru_backward",
    "hardsigmoid",
    "hardswish",
    "hardswish_backward",
    "has_scans",
    "huber",
    "hypot",
    "i0",
    "i0_backward",
    "i0e",
    "i0e_backward",
    "i1",
    "i1_backward",
    "i1e",
    "i1e_backward",
    "in_place",
    "may_be_in_place",
    "is_half",
    "is_large",
    "in_chunks",
    "in_parts",
    "keep_where",
    "layer_norm",
    "layer_norm_backward",
    "lerp",
    "log_softmax",
    "log_softmax_backward",
    "log_cumsum_exp",
    "log_sum_exp",
    "log_sum_exp_backward",
    "log_sum_exp_planes",
    "lgamma",
    "lgamma_backward",
    "log_ndtr",
    "log_ndtr_backward",
    "log_sigmoid",
    "log_sigmoid_backward",
    "logit_backward",
    "lstm",
    "lstm_backward",
    "matmul",
    "max_pool",
    "max_pool_backward",
    "mish",
    "mish_backward",
    "mse",
    "muon_step",
    "nadam_momentum",
    "nadam_steps",
    "nan_to_zero",
    "ndtr",
    "ndtr_backward",
    "parallel_for",
    "places",
    "prelu",
    "prelu_backward",
    "prod_axes",
    "quadratic_backward",
    "radam_steps",
    "recurrence",
    "reduce_axes",
    "relu",
    "relu_backward",
    "remainder",
    "resample",
    "rmsprop_steps",
    "rprop_steps",
    "rnn",
    "rnn_backward",
    "rms_norm",
    "rms_norm_backward",
    "rsqrt",
    "running_extreme",
    "scale_all",
    "scaled_softmax_planes",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "select",
    "scratch",
    "set_backend",
    "set_num_threads",
    "sgd_step",
    "sgd_steps",
    "shrink",
    "sigmoid",
    "sign",
    "silu",
    "silu_backward",
    "single_threaded_blas",
    "smooth_l1",
    "soft_margin",
    "softmax",
    "softmax_backward",
    "softmax_planes",
    "softmax_planes_backward",
    "softplus",
    "softplus_backward",
    "sorted_indices",
    "squared_deviations",
    "sum_axes",
    "sum_of_squares",
    "sum_rows",
    "take_rows",
    "threshold",
    "triangle",
    "trigamma",
    "two_slopes_backward",
    "xlogy",
]


def _replace_for_shapes() -> None:
    """Let a thread that computes shapes only call kernels that do nothing."""
    if not _replacements:
        from offgrad.kernels import _meta

        for name in __all__:
            _originals[name] = getattr(_sys.modules[__name__], name)
        _replacements.update(_meta.replacements(_originals))
    globals().update(_replacements)


_replacements: dict[str, object] = {}
_originals: dict[str, object] = {}
_meta_arrays.entered.append(_replace_for_shapes)
_meta_arrays.left.append(lambda: globals().update(_originals))


def _copy_large(out: _typing.Any, array: _typing.Any) -> None:
    _sys.modules[__name__].copy_into(out, array)  # imported at its first use


_set_copier(_copy_large)
