"""Utilities for training: clipping of gradients, parametrizations, pruning, fusion.

Internal: other names of the modules in this folder than those they list in `__all__`.
"""

import typing as _typing

from offgrad_storage._imports import lazy as _lazy

from offgrad._missing import missing as _missing

if _typing.TYPE_CHECKING or not _lazy(__name__):
    from offgrad.nn.utils import (
        clip_grad,
        convert_parameters,
        fusion,
        init,
        memory_format,
        parametrizations,
        parametrize,
        rnn,
        stateless,
    )
    from offgrad.nn.utils._spectral_norm import remove_spectral_norm, spectral_norm
    from offgrad.nn.utils._weight_norm import remove_weight_norm, weight_norm
    from offgrad.nn.utils.clip_grad import (
        clip_grad_norm,
        clip_grad_norm_,
        clip_grad_value_,
        clip_grads_with_norm_,
        get_total_norm,
    )
    from offgrad.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
    from offgrad.nn.utils.fusion import (
        fuse_conv_bn_eval,
        fuse_conv_bn_weights,
        fuse_linear_bn_eval,
        fuse_linear_bn_weights,
    )
    from offgrad.nn.utils.init import skip_init
    from offgrad.nn.utils.memory_format import (
        convert_conv2d_weight_memory_format,
        convert_conv3d_weight_memory_format,
    )

__all__ = [
    "clip_grad",
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "convert_conv2d_weight_memory_format",
    "convert_conv3d_weight_memory_format",
    "convert_parameters",
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
    "fusion",
    "get_total_norm",
    "init",
    "memory_format",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "spectral_norm",
    "stateless",
    "vector_to_parameters",
    "weight_norm",
]

__getattr__ = _missing("offgrad.nn.utils", ("prune",))
