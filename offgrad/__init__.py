"""offgrad: autograd on NumPy with PyTorch's names, whose saved tensors can leave memory.

``import offgrad as torch`` runs ordinary PyTorch CPU code with supported names. Every tensor saved
for backward passes through a policy: ``with offgrad.offload("disk"): loss = model(x)``.
"""

import os as _os

# Before NumPy starts OpenBLAS's threads: by default they spin for tens of milliseconds after each
# product and take that time from the kernels' threads (docs/adr/0007).
_os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")

import typing as _typing

import numpy as _np
from offgrad_storage._imports import lazy as _lazy

from offgrad import (
    _dtype,
    _foreach,
    _missing,
    _out,
    _pickling,
    _rare,
    _settings,
    autograd,
    memory,
    nn,
    ops,
    optim,
    random,
    session,
    utils,
)
from offgrad._dtype import (
    bfloat16,
    cdouble,
    cfloat,
    complex64,
    complex128,
    double,
    dtype,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    float16,
    float32,
    float64,
    half,
    int8,
    int16,
    int32,
    int64,
    long,
    short,
    uint8,
    uint16,
    uint32,
    uint64,
)
from offgrad._layout import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    jagged,
    layout,
    legacy_contiguous_format,
    memory_format,
    preserve_format,
    sparse_bsc,
    sparse_bsr,
    sparse_coo,
    sparse_csc,
    sparse_csr,
    strided,
)
from offgrad._settings import *  # noqa: F403
from offgrad._size import Size
from offgrad._tensor import functions as _functions
from offgrad._tensor import legacy as _legacy
from offgrad._tensor import storages as _storages
from offgrad._tensor.functions import *  # noqa: F403
from offgrad._tensor.legacy import set_default_tensor_type
from offgrad._tensor.printing import set_printoptions
from offgrad._tensor.storages import TypedStorage, UntypedStorage
from offgrad._tensor.tensor import Tensor
from offgrad._version import __version__ as __version__
from offgrad.autograd import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from offgrad.autograd.anomaly import is_anomaly_check_nan_enabled, is_anomaly_enabled
from offgrad.kernels import _openblas, _parallel, get_num_threads, set_num_threads
from offgrad.memory import OutOfMemoryError
from offgrad.ops import *  # noqa: F403

if _typing.TYPE_CHECKING or not _lazy(__name__):
    from offgrad import (
        checkpoint,
        fft,
        func,
        linalg,
        policies,
        profiler,
        serialization,
        special,
        storage,
    )
    from offgrad._compiled import compile
    from offgrad._config import show_config
    from offgrad.func import vmap
    from offgrad.prediction import estimate
    from offgrad.serialization import load, save
    from offgrad.session import offload, offload_model
    from offgrad.utils.dlpack import to_dlpack

# NumPy may have been imported before this module set the environment.
_openblas.prepare()
_parallel.apply_environment()


float = float32
int = int32
bool = _dtype.bool_
inf, nan, pi, e = _np.inf, _np.nan, _np.pi, _np.e


detach_, fill_, zero_ = Tensor.detach_, Tensor.fill_, Tensor.zero_
# Unlike that of nn.functional, PyTorch's returns the indices, too.
adaptive_max_pool1d = nn.functional.adaptive_max_pool1d_with_indices
globals().update(_out.functions)
globals().update(_legacy.TYPES)
globals().update(_foreach.functions)

_MODULES = (
    "_C",
    "__config__",
    "__future__",
    "_dynamo",
    "_inductor",
    "_utils",
    "accelerator",
    "amp",
    "backends",
    "compat",
    "compiler",
    "cpu",
    "cuda",
    "distributed",
    "distributions",
    "functional",
    "futures",
    "fx",
    "hub",
    "jit",
    "mps",
    "multiprocessing",
    "onnx",
    "overrides",
    "quasirandom",
    "signal",
    "sparse",
    "return_types",
    "testing",
    "torch_version",
    "types",
    "version",
    "xpu",
)
_storage_types = {
    each.__name__: each
    for each in _storages.TYPES.values()
    if not each.__name__.startswith(("UInt", "Float8"))
}
globals().update(_storage_types)

_NAMES = {
    **_rare.NAMES,
    "DisableTorchFunction": "_C",
    "DisableTorchFunctionSubclass": "_C",
    "load_ipython_extension": "_ipython",
}

__getattr__ = _missing.missing("offgrad", _MODULES, _NAMES)

__all__ = [
    "OutOfMemoryError",
    "Size",
    "Tensor",
    "TypedStorage",
    "UntypedStorage",
    "adaptive_max_pool1d",
    "autograd",
    "bfloat16",
    "bool",
    "cdouble",
    "cfloat",
    "channels_last",
    "channels_last_3d",
    "checkpoint",
    "compile",
    "complex128",
    "complex64",
    "contiguous_format",
    "detach_",
    "double",
    "dtype",
    "e",
    "enable_grad",
    "estimate",
    "fft",
    "fill_",
    "float",
    "float16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "func",
    "get_num_threads",
    "half",
    "inf",
    "inference_mode",
    "int",
    "int16",
    "int32",
    "int64",
    "int8",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "jagged",
    "layout",
    "legacy_contiguous_format",
    "linalg",
    "load",
    "long",
    "memory",
    "memory_format",
    "nan",
    "nn",
    "no_grad",
    "offload",
    "offload_model",
    "ops",
    "optim",
    "pi",
    "policies",
    "preserve_format",
    "profiler",
    "random",
    "save",
    "serialization",
    "session",
    "set_default_tensor_type",
    "set_grad_enabled",
    "set_num_threads",
    "set_printoptions",
    "short",
    "show_config",
    "sparse_bsc",
    "sparse_bsr",
    "sparse_coo",
    "sparse_csc",
    "sparse_csr",
    "special",
    "storage",
    "strided",
    "to_dlpack",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "utils",
    "vmap",
    "zero_",
]
__all__ += _settings.__all__
__all__ += _functions.__all__
__all__ += list(_legacy.TYPES)
__all__ += list(_storage_types)
__all__ += [name for name in vars(ops) if not name.startswith("_")]

_pickling.name_functions(globals())
