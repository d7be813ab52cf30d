"""Activation functions, and their gradients at kinks, which are torch's."""

from typing import Any

import numpy as np

from offgrad.ops._nn import piecewise_activations as piecewise
from offgrad.ops._nn import smooth_activations as smooth
from tests.ops.calls import call
from tests.ops.opspec import Array, OpSpec, between_integers

MATRIX = [((2, 3),), ((),), ((0, 3),)]


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _clear(values: Array) -> Array:
    """Away from the kinks at 0, 1/2, 1, 3 and 6, on all sides of them."""
    return np.asarray(between_integers(values * 2))


def _spec(name: str, cls: Any, reference: Any = None, label: str = "", **options: Any) -> OpSpec:
    extra = options.pop("options", {})
    return OpSpec(
        label or name,
        cls if isinstance(cls, tuple) else () if cls is None else (cls,),
        lambda m, x: call(m, f"F.{name}", x, **extra),
        MATRIX,
        reference,
        **options,
    )


SPECS = [
    _spec("silu", (smooth.Silu, smooth.FusedActivationBackward), lambda x: x * _sigmoid(x),
          third=True),
    # PyTorch does not differentiate complex ones.
    _spec("silu", smooth.Silu, lambda x: x * _sigmoid(x), label="silu_complex", complex=True,
          real=False, torch=False),
    _spec("elu", smooth.Elu, lambda x: np.where(x > 0, x, 1.5 * (np.exp(x) - 1)), domain=_clear,
          options={"alpha": 1.5}),
    _spec("selu", smooth.Elu, domain=_clear),
    _spec("celu", smooth.Celu, lambda x: np.where(x > 0, x, 0.5 * (np.exp(2 * x) - 1)),
          domain=_clear, options={"alpha": 0.5}),
    _spec("softplus", smooth.Softplus, lambda x: np.log(1 + np.exp(x)), third=True),
    _spec("softplus", smooth.Softplus, label="softplus_threshold", domain=_clear,
          options={"beta": 2.0, "threshold": 3.0}),
    _spec("mish", smooth.Mish, lambda x: x * np.tanh(np.log(1 + np.exp(x)))),
    _spec("logsigmoid", smooth.LogSigmoid, lambda x: np.log(_sigmoid(x))),
    _spec("softsign", None, lambda x: x / (1 + np.abs(x)), domain=_clear),
    _spec("tanhshrink", None, lambda x: x - np.tanh(x), complex=True),
    OpSpec("glu", (smooth.Glu, smooth.GluBackward), lambda m, x: call(m, "F.glu", x, 0),
           [((4, 3),), ((2,),)], lambda x: x[: len(x) // 2] * _sigmoid(x[len(x) // 2 :])),
    OpSpec("glu_last", (smooth.Glu, smooth.GluBackward), lambda m, x: call(m, "F.glu", x),
           [((3, 4),), ((2,),)],
           lambda x: x[..., : x.shape[-1] // 2] * _sigmoid(x[..., x.shape[-1] // 2 :])),
    _spec("leaky_relu", (piecewise.LeakyRelu, piecewise.TwoSlopesBackward),
          lambda x: np.where(x > 0, x, 0.2 * x), domain=_clear, options={"negative_slope": 0.2}),
    _spec("hardtanh", piecewise.Hardtanh, lambda x: np.clip(x, -1, 2), domain=_clear,
          options={"min_val": -1.0, "max_val": 2.0}),
    _spec("relu6", piecewise.Hardtanh, lambda x: np.clip(x, 0, 6), domain=_clear),
    # PyTorch has no second derivative of it.
    _spec("hardsigmoid", piecewise.Hardsigmoid, lambda x: np.clip(x + 3, 0, 6) / 6,
          domain=_clear, torch=False),
    _spec("hardswish", piecewise.Hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6,
          domain=_clear),
    OpSpec("threshold", (piecewise.Threshold,), lambda m, x: call(m, "F.threshold", x, 1.0, -2.0),
           MATRIX, lambda x: np.where(x > 1, x, -2), domain=_clear),
    _spec("softshrink", piecewise.Softshrink,
          lambda x: np.where(np.abs(x) > 0.7, x - 0.7 * np.sign(x), 0), domain=_clear,
          options={"lambd": 0.7}),
    _spec("hardshrink", piecewise.Hardshrink, lambda x: np.where(np.abs(x) > 0.7, x, 0),
          domain=_clear, options={"lambd": 0.7}),
    _spec("rrelu", piecewise.LeakyRelu, domain=_clear),
    OpSpec("prelu", (piecewise.PreluKernel, piecewise.PreluKernelBackward),
           lambda m, x, w: call(m, "F.prelu", x, w),
           [((2, 3), (3,)), ((2, 3), (1,)), ((2, 3, 2), (3,)), ((4,), (1,))],
           lambda x, w: np.where(
               x > 0, x, x * (w if w.size == 1 or x.ndim == 2 else w[:, None])),
           domain=_clear),
]  # fmt: skip
