"""Smooth activation functions, each one operation that keeps its input."""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, numpy_dtype
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.broadcasting import conj, wide
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dims import (
    normalize_dim,
)
from offgrad.ops._core.dtypes import category, check_tensor, real_floating
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._elementwise.comparison import where
from offgrad.ops._elementwise.exponential import exp, sigmoid
from offgrad.ops._elementwise.trigonometry import tanh
from offgrad.ops._shape.joining import cat
from offgrad.ops._shape.splitting import chunk

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "celu",
    "celu_",
    "elu",
    "glu",
    "logsigmoid",
    "mish",
    "selu",
    "selu_",
    "silu",
    "softplus",
    "softsign",
    "tanhshrink",
]


class Activation(Op):
    """A function of each element; keeps the input. Parameters become attributes."""

    is_recomputable = True

    def forward(self, x: Array, **parameters: Any) -> Array:
        self.__dict__.update(parameters)
        self.save(self=x)
        if not kernels.is_large(x.size):
            return np.asarray(self.value(wide(x)), x.dtype)
        out = memory.empty(x.shape, x.dtype)
        self.write(x, out)
        return out

    def write(self, x: Array, out: Array) -> None:
        """Write the values of a large array into `out`."""

        def piece(x: Array, out: Array) -> None:
            out[...] = self.value(wide(x))

        kernels.elementwise(piece, out, x)

    def backward(self, grad: "Tensor") -> Any:
        return grad * conj(self.slope(self.saved("self")))

    def value(self, x: Array) -> Any:
        """Return the function's values; `x` is float32 for float16 and bfloat16."""
        raise NotImplementedError

    def slope(self, x: "Tensor") -> "Tensor":
        """Return the derivative, in differentiable operations."""
        raise NotImplementedError


class FusedActivation(Op):
    """A function of each element; keeps the input. Its gradient is one operation.

    Parameters become attributes. `value` writes the function's values, ``value(x, out, ...)``, and
    `gradient` the gradient times the derivative, ``gradient(grad, x, out, ...)``; `slope` returns
    the derivative of a tensor in differentiable operations.
    """

    backward_takes_arrays = True
    is_recomputable = True

    value: ClassVar[Callable[..., None]]
    gradient: ClassVar[Callable[..., None]]
    slope: ClassVar[Callable[..., Any]]

    def forward(self, x: Array, **parameters: Any) -> Array:
        self.parameters = parameters
        self.__dict__.update(parameters)
        self.save(self=x)
        out = memory.empty(x.shape, x.dtype)
        if type(out) is not MetaArray:
            self.value(x, out, **parameters)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Multiply by the derivative, in one pass."""
        x = self.saved("self")
        if numpy_dtype(x).kind == "c":
            return grad * conj(self.slope(x, **self.parameters))
        name = type(self).__name__.replace("Backward0", "BackwardBackward0")
        op = FusedActivationBackward.named(name)
        return op.compute(grad, x, function=type(self), parameters=self.parameters)


class FusedActivationBackward(Op):
    """grad times the derivative of a function at x; keeps both."""

    is_elementwise = True

    def forward(
        self, grad: Array, x: Array, function: type[FusedActivation], parameters: dict[str, Any]
    ) -> Array:
        self.function, self.parameters = function, parameters
        self.save(grad=grad, self=x)
        out = memory.empty(x.shape, x.dtype)
        if type(out) is not MetaArray:
            function.gradient(grad, x, out, **parameters)
        return out

    def backward(self, grad: "Tensor") -> Any:
        function, parameters = self.function, self.parameters
        return differentiate(
            lambda g, x: g * function.slope(x, **parameters),
            (self.saved("grad"), self.saved("self")),
            (grad,),
            self.needs_input_grad,
        )


class Silu(FusedActivation):
    """x sigmoid(x) (Elfwing, Uchibe and Doya, 2018); keeps x."""

    @staticmethod
    def value(x: Array, out: Array) -> None:
        if x.dtype.kind == "c":
            np.multiply(x, 1 / (1 + np.exp(-x)), out=out)
        else:
            kernels.silu(x, out)

    @staticmethod
    def gradient(grad: Array, x: Array, out: Array) -> None:
        kernels.silu_backward(grad, x, out)

    @staticmethod
    def slope(x: "Tensor") -> "Tensor":
        """s (1 + x (1 - s)), s = sigmoid(x)."""
        s = sigmoid(x)
        return s * (x * (1 - s) + 1)


class Elu(FusedActivation):
    """scale x, below 0 scale alpha (e^(input_scale x) - 1) (Clevert et al., 2016); keeps x."""

    @staticmethod
    def value(x: Array, out: Array, alpha: float, scale: float, input_scale: float) -> None:
        kernels.elu(x, out, scale, alpha * scale, input_scale)

    @staticmethod
    def gradient(
        grad: Array, x: Array, out: Array, alpha: float, scale: float, input_scale: float
    ) -> None:
        kernels.elu_backward(grad, x, out, scale, alpha * scale, input_scale)

    @staticmethod
    def slope(x: "Tensor", alpha: float, scale: float, input_scale: float) -> "Tensor":
        """The scale above 0, else scale alpha input_scale e^(input_scale x)."""
        # Above 0 the exponential is not used, and must not overflow.
        low = where(x >= 0, x.new_zeros(()), x)
        exponential = exp(low * input_scale) * (alpha * scale * input_scale)
        return where(x > 0, x.new_full((), scale), exponential)


class Celu(FusedActivation):
    """x, below 0 alpha (e^(x / alpha) - 1) (Barron, 2017); keeps x."""

    @staticmethod
    def value(x: Array, out: Array, alpha: float) -> None:
        kernels.elu(x, out, 1, alpha, 1 / alpha)

    @staticmethod
    def gradient(grad: Array, x: Array, out: Array, alpha: float) -> None:
        kernels.elu_backward(grad, x, out, 1, alpha, 1 / alpha)

    @staticmethod
    def slope(x: "Tensor", alpha: float) -> "Tensor":
        """1 above 0, else e^(x / alpha)."""
        low = where(x >= 0, x.new_zeros(()), x)
        return where(x > 0, x.new_ones(()), exp(low / alpha))


class Softplus(FusedActivation):
    """log(1 + e^(beta x)) / beta, and x where beta x exceeds the threshold; keeps x."""

    @staticmethod
    def value(x: Array, out: Array, beta: float, threshold: float) -> None:
        kernels.softplus(x, out, beta, threshold)

    @staticmethod
    def gradient(grad: Array, x: Array, out: Array, beta: float, threshold: float) -> None:
        kernels.softplus_backward(grad, x, out, beta, threshold)

    @staticmethod
    def slope(x: "Tensor", beta: float, threshold: float) -> "Tensor":
        """sigmoid(beta x), and 1 beyond the threshold; from there on it has no derivative."""
        scaled = x * beta
        curved = where(scaled >= threshold, scaled.detach(), scaled)
        return where(scaled > threshold, x.new_ones(()), sigmoid(curved))


class Mish(FusedActivation):
    """x tanh(log(1 + e^x)) (Misra, 2019); keeps x."""

    @staticmethod
    def value(x: Array, out: Array) -> None:
        kernels.mish(x, out)

    @staticmethod
    def gradient(grad: Array, x: Array, out: Array) -> None:
        kernels.mish_backward(grad, x, out)

    @staticmethod
    def slope(x: "Tensor") -> "Tensor":
        """t + x sigmoid(x) (1 - t^2), t = tanh(log(1 + e^x))."""
        t = tanh(softplus(x))
        return t + x * sigmoid(x) * (1 - t * t)


class LogSigmoid(FusedActivation):
    """log sigmoid(x); keeps x."""

    @staticmethod
    def value(x: Array, out: Array) -> None:
        kernels.log_sigmoid(x, out)

    @staticmethod
    def gradient(grad: Array, x: Array, out: Array) -> None:
        kernels.log_sigmoid_backward(grad, x, out)

    @staticmethod
    def slope(x: "Tensor") -> "Tensor":
        """sigmoid(-x)."""
        return sigmoid(-x)


class Glu(Op):
    """The first half along a dimension times sigmoid of the second; keeps both."""

    is_recomputable = True

    def forward(self, x: Array, dim: int) -> Array:
        self.dim = dim
        self.save(self=x)
        axis = dim % x.ndim
        shape = *x.shape[:axis], x.shape[axis] // 2, *x.shape[axis + 1 :]
        out = memory.empty(shape, x.dtype)
        if type(out) is not MetaArray:
            kernels.glu(*_halves(x, out, dim))
        return out

    def backward(self, grad: "Tensor") -> Any:
        return GluBackward.apply(grad, self.saved("self"), dim=self.dim)


class GluBackward(Op):
    """da = g sigmoid(b), db = g a sigmoid(b) (1 - sigmoid(b)), in one array; keeps g and x."""

    torch_name = "GluBackwardBackward0"

    def forward(self, grad: Array, x: Array, dim: int) -> Array:
        self.dim = dim
        self.save(grad=grad, self=x)
        out = memory.empty(x.shape, x.dtype)
        if type(out) is not MetaArray:
            halves, gradient = _halves(x, memory.contiguous(grad), dim)
            kernels.glu_backward(gradient, halves, out.reshape(halves.shape))
        return out

    def backward(self, grad: "Tensor") -> Any:
        def reference(g: "Tensor", x: "Tensor") -> "Tensor":
            a, b = chunk(x, 2, self.dim)
            s = sigmoid(b)
            return cat([g * s, g * a * s * (1 - s)], self.dim)

        inputs = self.saved("grad"), self.saved("self")
        return differentiate(reference, inputs, (grad,), self.needs_input_grad)


def _halves(x: Array, half: Array, dim: int) -> tuple[Array, Array]:
    """Return x as [N, 2, L] and an array of half its size along `dim` as [N, L]."""
    axis = dim % x.ndim
    planes, length = prod(half.shape[:axis]), prod(half.shape[axis:])
    return memory.contiguous(x).reshape(planes, 2, length), half.reshape(planes, length)


def silu(input: "Tensor") -> "Tensor":
    """Return ``input * sigmoid(input)``."""
    if category(check_tensor(input, "silu")._array.dtype) < 2:
        raise NotImplementedError(f"silu is defined for floating point, got a {describe(input)}")
    return Silu.apply(input)


def elu(input: "Tensor", alpha: float = 1.0) -> "Tensor":
    """Return `input`, and below 0 ``alpha * (exp(input) - 1)``."""
    return Elu.apply(real_floating(input, "elu"), alpha=float(alpha), scale=1, input_scale=1)


def selu(input: "Tensor") -> "Tensor":
    """Return the scaled exponential linear unit (Klambauer et al., 2017)."""
    x = real_floating(input, "selu")
    return Elu.apply(x, alpha=1.6732632423543772, scale=1.0507009873554805, input_scale=1)


def celu(input: "Tensor", alpha: float = 1.0) -> "Tensor":
    """Return `input`, and below 0 ``alpha * (exp(input / alpha) - 1)``.

    Raises:
        RuntimeError: if `alpha` is 0.
    """
    if not alpha:
        raise RuntimeError("celu: alpha must not be 0")
    return Celu.apply(real_floating(input, "celu"), alpha=float(alpha))


def softplus(input: "Tensor", beta: float = 1, threshold: float = 20) -> "Tensor":
    """Return ``log(1 + exp(beta * input)) / beta``; `input` where the exponent exceeds the
    threshold.
    """
    return Softplus.apply(real_floating(input, "softplus"), beta=beta, threshold=threshold)


def mish(input: "Tensor") -> "Tensor":
    """Return ``input * tanh(softplus(input))``."""
    return Mish.apply(real_floating(input, "mish"))


def logsigmoid(input: "Tensor") -> "Tensor":
    """Return the logarithm of the logistic function, without overflow."""
    return LogSigmoid.apply(real_floating(input, "logsigmoid"))


def softsign(input: "Tensor") -> "Tensor":
    """Return ``input / (1 + abs(input))``."""
    return input / (check_tensor(input, "softsign").abs() + 1)


def tanhshrink(input: "Tensor") -> "Tensor":
    """Return ``input - tanh(input)``."""
    return check_tensor(input, "tanhshrink") - tanh(input)


def glu(input: "Tensor", dim: int = -1) -> "Tensor":
    """Return the first half along `dim` times the logistic function of the second.

    Raises:
        RuntimeError: if the size is odd.
    """
    x = real_floating(input, "glu")
    if not x._array.ndim:
        raise RuntimeError("glu: at least one dimension is needed, got a scalar")
    axis = normalize_dim(dim, x._array.ndim, "glu")
    if x._array.shape[axis] % 2:
        raise RuntimeError(f"glu: the size of dim {axis} must be even, got a {describe(x)}")
    return Glu.apply(x, dim=dim)


celu_ = inplace_form(celu)
selu_ = inplace_form(selu)
