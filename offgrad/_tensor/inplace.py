"""The operations that are methods of tensors which change them in place."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgrad import ops
from offgrad.autograd.tensor_base import TensorBase

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def in_place(operation: Callable[..., Any]) -> "Callable[..., Tensor]":
    """Return the method that makes a tensor the result of `operation` on it."""

    def method(self: "Tensor", *args: Any, **kwargs: Any) -> "Tensor":
        return ops.inplace(operation, self, *args, **kwargs)

    method.__name__ = f"{operation.__name__}_"
    method.__doc__ = f"Do what `{operation.__name__}` does, in place; return the tensor."
    return method


def in_place_view(operation: Callable[..., Any]) -> "Callable[..., Tensor]":
    """Return the method that makes a tensor the view of it that `operation` returns."""

    def method(self: "Tensor", *args: Any) -> "Tensor":
        return ops.inplace_view(operation, self, *args)

    method.__name__ = f"{operation.__name__}_"
    method.__doc__ = f"Do what `{operation.__name__}` does, in place; return the tensor."
    return method


FUNCTIONS = [
    "abs",
    "acos",
    "acosh",
    "addmv",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "clamp",
    "clamp_max",
    "clamp_min",
    "clip",
    "conj_physical",
    "cos",
    "cosh",
    "deg2rad",
    "detach",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "fill",
    "fix",
    "floor",
    "frac",
    "index_put",
    "log",
    "log10",
    "log1p",
    "log2",
    "logit",
    "nan_to_num",
    "neg",
    "negative",
    "rad2deg",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "xlogy",
    "zero",
]
"""The methods that PyTorch has as functions too, without their underscores."""


class InPlaceMethods(TensorBase):
    """Methods that change the tensor: its memory, its version and its place in the graph."""

    abs_ = in_place(ops.abs)
    absolute_ = in_place(ops.absolute)
    acos_ = in_place(ops.acos)
    acosh_ = in_place(ops.acosh)
    add_ = in_place(ops.add)
    addbmm_ = in_place(ops.addbmm)
    addcdiv_ = in_place(ops.addcdiv)
    addcmul_ = in_place(ops.addcmul)
    addmm_ = in_place(ops.addmm)
    addmv_ = in_place(ops.addmv)
    addr_ = in_place(ops.addr)
    arccos_ = in_place(ops.arccos)
    arccosh_ = in_place(ops.arccosh)
    arcsin_ = in_place(ops.arcsin)
    arcsinh_ = in_place(ops.arcsinh)
    arctan2_ = in_place(ops.arctan2)
    arctan_ = in_place(ops.arctan)
    arctanh_ = in_place(ops.arctanh)
    asin_ = in_place(ops.asin)
    asinh_ = in_place(ops.asinh)
    atan2_ = in_place(ops.atan2)
    atan_ = in_place(ops.atan)
    atanh_ = in_place(ops.atanh)
    baddbmm_ = in_place(ops.baddbmm)
    bitwise_and_ = in_place(ops.bitwise_and)
    bitwise_not_ = in_place(ops.bitwise_not)
    bitwise_or_ = in_place(ops.bitwise_or)
    bitwise_xor_ = in_place(ops.bitwise_xor)
    ceil_ = in_place(ops.ceil)
    clamp_ = in_place(ops.clamp)
    clamp_max_ = in_place(ops.clamp_max)
    clamp_min_ = in_place(ops.clamp_min)
    clip_ = in_place(ops.clip)
    conj_physical_ = in_place(ops.conj_physical)
    copy_ = ops.copy_
    copysign_ = in_place(ops.copysign)
    cos_ = in_place(ops.cos)
    cosh_ = in_place(ops.cosh)
    cumprod_ = in_place(ops.cumprod)
    cumsum_ = in_place(ops.cumsum)
    deg2rad_ = in_place(ops.deg2rad)
    div_ = in_place(ops.div)
    divide_ = in_place(ops.divide)
    eq_ = in_place(ops.eq)
    erf_ = in_place(ops.erf)
    erfc_ = in_place(ops.erfc)
    erfinv_ = in_place(ops.erfinv)
    exp2_ = in_place(ops.exp2)
    exp_ = in_place(ops.exp)
    expm1_ = in_place(ops.expm1)
    fix_ = in_place(ops.fix)
    floor_ = in_place(ops.floor)
    floor_divide_ = in_place(ops.floor_divide)
    fmod_ = in_place(ops.fmod)
    frac_ = in_place(ops.frac)
    ge_ = in_place(ops.ge)
    greater_ = in_place(ops.greater)
    greater_equal_ = in_place(ops.greater_equal)
    gt_ = in_place(ops.gt)
    heaviside_ = in_place(ops.heaviside)
    hypot_ = in_place(ops.hypot)
    index_add_ = in_place(ops.index_add)
    index_copy_ = in_place(ops.index_copy)
    index_fill_ = in_place(ops.index_fill)
    index_put_ = in_place(ops.index_put)
    le_ = in_place(ops.le)
    lerp_ = in_place(ops.lerp)
    less_ = in_place(ops.less)
    less_equal_ = in_place(ops.less_equal)
    log10_ = in_place(ops.log10)
    log1p_ = in_place(ops.log1p)
    log2_ = in_place(ops.log2)
    log_ = in_place(ops.log)
    logical_and_ = in_place(ops.logical_and)
    logical_not_ = in_place(ops.logical_not)
    logical_or_ = in_place(ops.logical_or)
    logical_xor_ = in_place(ops.logical_xor)
    logit_ = in_place(ops.logit)
    lt_ = in_place(ops.lt)
    masked_fill_ = in_place(ops.masked_fill)
    masked_scatter_ = in_place(ops.masked_scatter)
    mul_ = in_place(ops.mul)
    multiply_ = in_place(ops.multiply)
    nan_to_num_ = in_place(ops.nan_to_num)
    ne_ = in_place(ops.ne)
    neg_ = in_place(ops.neg)
    negative_ = in_place(ops.negative)
    not_equal_ = in_place(ops.not_equal)
    pow_ = in_place(ops.pow)
    put_ = in_place(ops.put)
    rad2deg_ = in_place(ops.rad2deg)
    reciprocal_ = in_place(ops.reciprocal)
    relu_ = in_place(ops.relu)
    remainder_ = in_place(ops.remainder)
    round_ = in_place(ops.round)
    rsqrt_ = in_place(ops.rsqrt)
    scatter_ = in_place(ops.scatter)
    scatter_add_ = in_place(ops.scatter_add)
    sgn_ = in_place(ops.sgn)
    sigmoid_ = in_place(ops.sigmoid)
    sign_ = in_place(ops.sign)
    sin_ = in_place(ops.sin)
    sinc_ = in_place(ops.sinc)
    sinh_ = in_place(ops.sinh)
    sqrt_ = in_place(ops.sqrt)
    square_ = in_place(ops.square)
    squeeze_ = in_place_view(ops.squeeze)
    sub_ = in_place(ops.sub)
    subtract_ = in_place(ops.subtract)
    swapaxes_ = in_place_view(ops.swapaxes)
    swapdims_ = in_place_view(ops.swapdims)
    t_ = in_place_view(ops.t)
    tan_ = in_place(ops.tan)
    tanh_ = in_place(ops.tanh)
    transpose_ = in_place_view(ops.transpose)
    tril_ = in_place(ops.tril)
    triu_ = in_place(ops.triu)
    true_divide_ = in_place(ops.true_divide)
    trunc_ = in_place(ops.trunc)
    unsqueeze_ = in_place_view(ops.unsqueeze)
    xlogy_ = in_place(ops.xlogy)
