"""Operations on each element by one function."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from offgrad import kernels
from offgrad.autograd.op import Array, Op
from offgrad.ops._core.broadcasting import compute, conj
from offgrad.ops._core.derivatives import differentiate

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


_SMALL = 1024
"""Elements up to which a function of NumPy's is called directly."""


class Unary(Op):
    """f(x) by a ufunc; keeps x, or the result if that gives a simpler derivative."""

    is_recomputable = True

    ufunc: ClassVar[Callable[..., Any]]
    keeps: ClassVar[str] = "self"
    # Whether `ufunc` itself calls a kernel.
    is_on_threads: ClassVar[bool] = False

    def forward(self, x: Array) -> Array:
        ufunc = type(self).ufunc
        if x.size > _SMALL and not self.is_on_threads:
            ufunc = partial(kernels.elementary, ufunc)
        result = compute(ufunc, x)
        self.save(**{self.keeps: x if self.keeps == "self" else result})
        return result

    def backward(self, grad: "Tensor") -> Any:
        return grad * conj(self.derivative(self.saved(self.keeps)))

    def derivative(self, saved: "Tensor") -> "Tensor":
        """Return f'(x) from the saved tensor."""
        raise NotImplementedError


class FusedUnary(Unary):
    """f(x) whose derivative is a + b y + c y^2 of the result y, in one operation; keeps y."""

    backward_takes_arrays = True
    keeps = "result"

    factors: ClassVar[tuple[int, int, int]]  # a, b and c

    def backward(self, grad: "Tensor") -> Any:
        """Multiply by the derivative, of large real arrays in one pass."""
        result = self.saved("result")
        if self._on_arrays:
            return grad * self.derivative(result)
        if result._array.dtype.kind == "c":
            return grad * conj(self.derivative(result))
        op = FusedUnaryBackward.named(f"{type(self).__name__[:-1]}Backward0")
        return op.compute(grad, result, factors=self.factors)


class FusedUnaryBackward(Op):
    """grad times a + b y + c y^2; keeps grad and y."""

    is_elementwise = True

    def forward(self, grad: Array, result: Array, factors: tuple[int, int, int]) -> Array:
        self.factors = factors
        self.save(grad=grad, result=result)
        a, b, c = factors
        return compute(partial(kernels.quadratic_backward, a=a, b=b, c=c), grad, result)

    def backward(self, grad: "Tensor") -> Any:
        """The derivatives by grad, and by y: grad (b + 2 c y)."""
        need_grad, need_result = self.needs_input_grad
        first, y = self.saved("grad"), self.saved("result")
        a, b, c = self.factors
        return (
            grad * (a + y * (b + c * y)) if need_grad else None,
            grad * first * (b + 2 * c * y) if need_result else None,
        )


def kernel(name: str) -> Any:
    """Return the kernel `name`, whose file is imported at its first call."""

    def run(*arrays: Array, out: Array) -> None:
        getattr(kernels, name)(*arrays, out)

    return staticmethod(run)


class KernelUnary(Unary):
    """f(x) by a kernel, and its gradient by another, in one operation; keeps x."""

    backward_takes_arrays = True
    is_on_threads = True

    backward_kernel: ClassVar[Callable[..., None]]

    def backward(self, grad: "Tensor") -> Any:
        """Multiply by the derivative, in one kernel."""
        return KernelUnaryBackward.compute(grad, self.saved("self"), of=type(self))

    @classmethod
    def derivative(cls, saved: "Tensor") -> "Tensor":
        """Return f'(x) in differentiable operations."""
        raise NotImplementedError


class KernelUnaryBackward(Op):
    """grad times f'(x); keeps both."""

    is_elementwise = True

    def forward(self, grad: Array, x: Array, of: type[KernelUnary]) -> Array:
        self.of = of
        self.save(grad=grad, self=x)
        return compute(of.backward_kernel, grad, x)

    def backward(self, grad: "Tensor") -> Any:
        """Differentiate by x as the definition says; by the gradient, the kernel does."""
        of, x = self.of, self.saved("self")
        need_grad, need_x = self.needs_input_grad
        _, dx = differentiate(
            lambda g, x: g * of.derivative(x), (self.saved("grad"), x), (grad,), (False, need_x)
        )
        return KernelUnaryBackward.apply(grad, x, of=of) if need_grad else None, dx
