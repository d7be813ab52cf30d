"""``out=``: operations that write their result into a given tensor."""

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import ops
from offgrad._tensor.overrides import install, is_installed, overriding
from offgrad.autograd import grad_mode
from offgrad.autograd.mutation import check_mutable
from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.ops._core.dtypes import category
from offgrad.ops._core.inplace_forms import overwrite
from offgrad.ops._core.sparse_data import SparseRefusalError, of_sparse

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

NAMES = """
    abs acos acosh add addbmm addcdiv addcmul addmm addmv addr all amax amin aminmax angle any
    arange argmax argmin asin asinh atan atan2 atanh baddbmm bitwise_and bitwise_not bitwise_or
    bitwise_xor bmm bucketize cat ceil chain_matmul clamp clamp_max clamp_min clip column_stack
    complex concat concatenate conj_physical copysign cos cosh cross cummax cummin cumprod
    cumsum deg2rad diag diff div divide dot dstack empty eq erf erfc erfinv exp exp2 expm1
    eye fix float_power floor floor_divide fmax fmin fmod frac full gather ge ger
    greater greater_equal gt heaviside hstack hypot index_select inner isneginf isposinf kron
    kthvalue le lerp less less_equal linspace log log10 log1p log2 log_softmax logaddexp
    logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor logit logsumexp lt
    masked_select matmul max maximum mean median min minimum mm msort mul multinomial multiply
    mv nan_to_num nanmean nansum ne neg negative nonzero norm normal not_equal ones
    outer polar pow prod rad2deg rand randint randn randn_like randperm reciprocal
    remainder round row_stack rsqrt scatter scatter_add searchsorted sgn sigmoid sign signbit
    sin sinc sinh softmax sort sqrt square stack std std_mean sub subtract sum take
    take_along_dim tan tanh tensordot topk tril tril_indices triu triu_indices trunc var
    var_mean vdot vstack where xlogy zeros
    bitwise_left_shift bitwise_right_shift gcd lcm ldexp nextafter
    alias_copy as_strided_copy detach_copy diagonal_copy expand_copy frexp histc histogram
    index_reduce isin mode nanmedian nanquantile narrow_copy nonzero_static permute_copy quantile
    renorm scatter_reduce select_copy slice_copy squeeze_copy t_copy transpose_copy unfold_copy
    unsqueeze_copy view_copy
    absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh argsort bernoulli cholesky
    cholesky_inverse cholesky_solve digamma geqrf hardshrink i0 igamma igammac inverse lgamma
    logspace lu_solve lu_unpack orgqr ormqr qr slice_scatter slogdet svd triangular_solve
    true_divide index_add index_copy mvlgamma polygamma range
"""
"""The functions that take ``out=``, as in PyTorch."""

EXACT = """
    abs addbmm addmm addmv all amax amin aminmax any argmax argmin baddbmm bitwise_not bmm bucketize
    ceil chain_matmul clamp clamp_max clamp_min clip complex conj_physical cross cummax cummin diag
    dot fix floor frac gather index_select inner isneginf isposinf kthvalue log_softmax logcumsumexp
    masked_select matmul max median min mm msort multinomial mv nan_to_num neg negative nonzero norm
    normal polar round scatter scatter_add searchsorted sgn sign signbit softmax sort
    std_mean take take_along_dim tensordot topk tril tril_indices triu triu_indices trunc var_mean
    vdot where
    alias_copy as_strided_copy detach_copy diagonal_copy expand_copy frexp histc histogram
    index_reduce isin mode nanmedian nanquantile narrow_copy nonzero_static permute_copy quantile
    renorm scatter_reduce select_copy slice_copy squeeze_copy t_copy transpose_copy unfold_copy
    unsqueeze_copy view_copy
"""
"""Those of them whose results do not convert to another dtype."""

_OF_COUNT = frozenset({"arange", "linspace", "logspace", "range"})
"""Those of them that fill an ``out`` of as many elements, whatever its shape."""

_FILLING = frozenset({"empty", "full", "ones", "zeros", "rand", "randint", "randn", "randperm"})
"""Those of them that resize ``out`` without a warning."""

DTYPE_OF_OUT = """
    arange cumprod cumsum empty eye full linspace mean nansum ones prod rand randint randn sum zeros
"""
"""Those of them that compute in the dtype of ``out``, unless given another, which is an error."""


def with_out(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return `operation` with a keyword ``out``: a tensor, or one for each of several results.

    The result overwrites ``out``, and ``out`` is returned. Where PyTorch's result converts to the
    dtype of ``out``, it does here. An ``out`` of another shape takes that of the result, with a
    warning unless it has no elements.

    Raises:
        RuntimeError: in grad mode, if ``out`` or an argument requires grad; if the dtype of the
            result does not convert, or a ``dtype`` is given that ``out`` lacks.
    """
    name = operation.__name__
    is_exact, takes_dtype = name in EXACT.split(), name in DTYPE_OF_OUT.split()

    @functools.wraps(operation)
    def run(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is None:
            try:
                return operation(*args, **kwargs)
            except SparseRefusalError:
                return of_sparse(name, args, kwargs)
            except (TypeError, AttributeError):
                if is_installed() or not overriding((*args, *kwargs.values())):
                    raise
            install()
            return run(*args, **kwargs)
        targets = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        for target in targets:
            if not isinstance(target, TensorBase):
                raise TypeError(f"{name}: out= must be a tensor, got {type(target).__name__}")
        _check_dtype(name, targets[0], kwargs, takes_dtype)
        result = operation(*args, **kwargs)
        results = tuple(result) if isinstance(result, tuple) else (result,)
        if len(results) != len(targets):
            raise RuntimeError(
                f"{name}: out= must be given for each of {len(results)} results, got {len(targets)}"
            )
        for each in (*targets, *results) if grad_mode.state.grad_enabled else ():
            if each.requires_grad:
                raise RuntimeError(
                    f"{name}(): functions with out=... arguments don't support automatic "
                    f"differentiation, but a {describe(each)} requires grad; drop out=, or use "
                    "no_grad()"
                )
        for target, value in zip(targets, results, strict=True):
            # The maximum of two tensors converts, that along a dimension does not.
            converts = not is_exact or (name in ("max", "min") and len(results) == 1)
            if not converts and target._array.dtype != value._array.dtype:
                raise RuntimeError(
                    f"{name}: Expected out tensor to have dtype {value._array.dtype.name}, that of "
                    f"the result, got a {describe(target)}"
                )
            _write(name, target, value)
        return type(result)(*targets) if hasattr(result, "_fields") else out

    return run


def _check_dtype(name: str, target: TensorBase, kwargs: dict[str, Any], takes_dtype: bool) -> None:
    """Raise unless a keyword ``dtype`` is that of `target`; add it where that is the default."""
    if kwargs.get("dtype") is None:
        if takes_dtype:
            kwargs["dtype"] = target._array.dtype
    elif np.dtype(kwargs["dtype"]) != target._array.dtype:
        raise RuntimeError(
            f"{name}: out= must have the dtype asked for, {np.dtype(kwargs['dtype']).name}, got a "
            f"{describe(target)}; leave out dtype="
        )


def _write(name: str, target: "Tensor", value: "Tensor") -> None:
    if name in _OF_COUNT and target._array.size == value._array.size:
        value = value.reshape(target._array.shape)
    converts = category(value._array.dtype) <= category(target._array.dtype)
    if target._array.shape != value._array.shape and converts:
        check_mutable(target, name, recorded=False)
        if target._array.size and name not in _FILLING:
            warnings.warn(
                f"An output with elements was resized: out= of {name} is a {describe(target)}, "
                f"and the result has shape {list(value._array.shape)}; pass one of that shape, or "
                "of no elements",
                UserWarning,
                stacklevel=4,
            )
        target.resize_(value._array.shape)
    overwrite(target, value, f"{name} with out=")


_SPARSE = "clone detach permute relu select t transpose unsqueeze zeros_like empty_like"


def _with_sparse(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return `operation`, which takes sparse tensors, too."""

    @functools.wraps(operation)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return operation(*args, **kwargs)
        except SparseRefusalError:
            return of_sparse(operation.__name__, args, kwargs)

    return run


functions = {name: with_out(getattr(ops, name)) for name in NAMES.split()}
functions.update({name: _with_sparse(getattr(ops, name)) for name in _SPARSE.split()})
