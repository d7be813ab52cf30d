"""``out=``: operations that write their result into a given tensor."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgrad import ops
from offgrad.autograd import grad_mode
from offgrad.autograd.mutation import check_mutable
from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.memory import empty
from offgrad.ops._core.inplace_forms import overwrite

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

NAMES = """
    abs acos acosh add addbmm addcdiv addcmul addmm addmv addr all amax amin aminmax angle any
    arange argmax argmin asin asinh atan atan2 atanh baddbmm bitwise_and bitwise_not bitwise_or
    bitwise_xor bmm bucketize cat ceil chain_matmul clamp clamp_max clamp_min clip column_stack
    complex concat concatenate conj_physical copysign cos cosh cross cummax cummin cumprod
    cumsum deg2rad diag diff div divide dot dstack empty_like eq erf erfc erfinv exp exp2 expm1
    eye fix float_power floor floor_divide fmax fmin fmod frac full full_like gather ge ger
    greater greater_equal gt heaviside hstack hypot index_select inner isneginf isposinf kron
    kthvalue le lerp less less_equal linspace log log10 log1p log2 log_softmax logaddexp
    logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor logit logsumexp lt
    masked_select matmul max maximum mean median min minimum mm msort mul multinomial multiply
    mv nan_to_num nanmean nansum ne neg negative nonzero norm normal not_equal ones ones_like
    outer polar pow prod rad2deg rand rand_like randint randn randn_like randperm reciprocal
    remainder round row_stack rsqrt scatter scatter_add searchsorted sgn sigmoid sign signbit
    sin sinc sinh softmax sort sqrt square stack std std_mean sub subtract sum take
    take_along_dim tan tanh tensordot topk tril tril_indices triu triu_indices trunc var
    var_mean vdot vstack where xlogy zeros zeros_like
"""
"""The functions that take ``out=``, as in PyTorch."""


def with_out(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return `operation` with a keyword ``out``: a tensor, or one for each of several results.

    The result overwrites ``out``, converted to its dtype, and ``out`` is returned. An ``out``
    without elements takes the shape of the result.

    Raises:
        RuntimeError: in grad mode, if ``out`` or an argument requires grad; if the shapes differ or
            the dtype of the result does not convert.
    """
    name = operation.__name__

    @functools.wraps(operation)
    def run(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is None:
            return operation(*args, **kwargs)
        targets = tuple(out) if isinstance(out, tuple | list) else (out,)
        for target in targets:
            if not isinstance(target, TensorBase):
                raise TypeError(f"{name}: out= must be a tensor, got {type(target).__name__}")
        result = operation(*args, **kwargs)
        results = tuple(result) if isinstance(result, tuple) else (result,)
        if len(results) != len(targets):
            raise RuntimeError(
                f"{name}: out= must be given for each of {len(results)} results, got {len(targets)}"
            )
        for each in (*targets, *results) if grad_mode.state.grad_enabled else ():
            if each.requires_grad:
                raise RuntimeError(
                    f"{name}: out= is not differentiable, so neither out nor an argument may "
                    f"require grad, got a {describe(each)} that does; drop out=, or use no_grad()"
                )
        for target, value in zip(targets, results, strict=True):
            _write(name, target, value)
        return type(result)(*targets) if hasattr(result, "_fields") else out

    return run


def _write(name: str, target: "Tensor", value: "Tensor") -> None:
    if target._array.size == 0 and value._array.size and target._base is None:
        check_mutable(target, name, recorded=False)
        target._set(empty(value._array.shape, target._array.dtype), None, False)
    overwrite(target, value, f"{name} with out=")


functions = {name: with_out(getattr(ops, name)) for name in NAMES.split()}
