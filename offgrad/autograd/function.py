"""Function: differentiable operations of the user's own, written as in PyTorch."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offgrad.autograd import grad_mode
from offgrad.autograd.mutation import check_mutable
from offgrad.autograd.node import Grads, Node, connect, gradient_edge, tensor_from_edge
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.tensor_base import TensorBase, describe, is_differentiable, view_of, wrap

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


class FunctionCtx(Node):
    """What a Function's `forward` and `backward` share: the ``ctx`` argument, and the node.

    Any attribute may be set on it. Tensors that backward needs belong into `save_for_backward`, so
    that they are checked for in-place changes, offloaded by policies, and freed with the graph.
    """

    runs_without_grad = True
    function: type["Function"]

    def __init__(self) -> None:
        super().__init__()
        self._to_save: tuple[Tensor | None, ...] = ()
        self._none_saved: tuple[bool, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._materialize_grads = True

    def name(self) -> str:
        """Return the name PyTorch prints: that of the Function with ``Backward``."""
        return f"{self.function.__name__}Backward"

    def save_for_backward(self, *tensors: "Tensor | None") -> None:
        """Save inputs, outputs or intermediate tensors; call it once, in forward."""
        for tensor in tensors:
            if tensor is not None and not isinstance(tensor, TensorBase):
                raise TypeError(
                    f"save_for_backward takes tensors and None, got {type(tensor).__name__}; set "
                    "other things as attributes of ctx"
                )
        self._to_save = tensors

    @property
    def saved_tensors(self) -> "tuple[Tensor | None, ...]":
        """What `save_for_backward` was given, checked for in-place changes since."""
        if self._to_save and not self._none_saved:
            return self._to_save
        return tuple(
            None if is_none else self._saved[str(index)].unpack()
            for index, is_none in enumerate(self._none_saved)
        )

    def mark_dirty(self, *tensors: "Tensor") -> None:
        """Declare inputs that forward changes in place; it must return them too."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: "Tensor") -> None:
        """Declare outputs that do not require grad."""
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Choose whether missing gradients reach backward as zeros (the default) or as None."""
        self._materialize_grads = value

    def run(self, grads: Grads) -> Grads:
        """Call the Function's backward and check what it returns."""
        if self._materialize_grads:
            grads = tuple(
                wrap_zeros(shape, dtype) if grad is None and dtype is not None else grad
                for grad, (shape, dtype) in zip(grads, self.output_metadata, strict=True)
            )
        result = self.function.backward(self, *grads)
        given = result if isinstance(result, tuple | list) else (result,)
        expected = len(self.next_functions)
        if len(given) > expected and all(each is None for each in given[expected:]):
            given = given[:expected]
        if len(given) != expected:
            raise RuntimeError(
                f"{self.name()} must return a gradient, or None, for each of the {expected} "
                f"inputs of forward, but returned {len(given)}"
            )
        for index, each in enumerate(given):
            if each is not None and not isinstance(each, TensorBase):
                raise TypeError(
                    f"{self.name()} must return tensors and None, but returned "
                    f"{type(each).__name__} at index {index}"
                )
        return tuple(given)


def wrap_zeros(shape: tuple[int, ...], dtype: Any) -> "Tensor":
    """Return a tensor of zeros."""
    from offgrad.memory import zeros

    return wrap(zeros(shape, dtype))


class Function:
    """Base of user-defined differentiable operations.

    Subclass it with static methods ``forward(ctx, *args)`` (or ``forward(*args)`` together with
    ``setup_context(ctx, inputs, output)``) and ``backward(ctx, *grad_outputs)``; call it by
    ``apply(*args)``. Forward is not recorded; gradients are what `backward` returns, one for each
    argument, and differentiable in turn if it uses differentiable operations.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        """Return the output tensor or a tuple of them."""
        raise NotImplementedError("a Function needs a static method forward(ctx, *args)")

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        """Save for backward; without it, forward takes ctx and saves itself."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: FunctionCtx, *grad_outputs: Any) -> Any:
        """Return the gradient of each argument of forward, None for what is no tensor."""
        raise NotImplementedError("a Function needs a static method backward(ctx, *grad_outputs)")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run `forward` and record it if grad mode is on and an argument requires grad."""
        ctx = FunctionCtx()
        ctx.function = cls
        tensors = [each if isinstance(each, TensorBase) else None for each in args]
        ctx.needs_input_grad = tuple(each is not None and each._requires_grad for each in tensors)
        recorded = grad_mode.state.grad_enabled and any(ctx.needs_input_grad)
        if recorded:
            for each in tensors:
                if each is not None:
                    ctx.next_functions += (gradient_edge(each),)  # type: ignore[arg-type]
                else:
                    ctx.next_functions += ((None, 0),)
        with grad_mode.no_grad():
            if cls.setup_context is Function.setup_context:
                output = cls.forward(ctx, *args)
            else:
                output = cls.forward(*args)
                cls.setup_context(ctx, args, output)
        results = output if isinstance(output, tuple) else (output,)
        outputs = tuple(cls._output(ctx, each, tensors, recorded) for each in results)
        if recorded:
            cls._save(ctx, tensors, results, outputs)
        ctx._to_save = () if recorded else ctx._to_save
        ctx._dirty = ctx._non_differentiable = ()
        return outputs if isinstance(output, tuple) else outputs[0]

    @classmethod
    def _output(cls, ctx: FunctionCtx, value: Any, tensors: list[Any], recorded: bool) -> Any:
        """Return `value` as an output of the node."""
        if not isinstance(value, TensorBase):
            if recorded:
                ctx.output_metadata += (((), None),)
            return value
        result: Any = value
        is_input = any(result is each for each in tensors)
        if any(result is each for each in ctx._dirty):
            if not is_input:
                raise RuntimeError(
                    f"mark_dirty takes inputs of {cls.__name__}.forward, got another "
                    f"{describe(result)}"
                )
            check_mutable(result, f"{cls.__name__} (mark_dirty)", recorded)
            result._storage.write(ctx.name())
            result._generation += recorded
            output = result
        else:
            output = view_of(result._array, result) if is_input else result
        if not recorded:
            return output
        marked = any(result is each for each in ctx._non_differentiable)
        if marked or not is_differentiable(output._array.dtype):
            ctx.output_metadata += ((output._array.shape, output._array.dtype),)
        else:
            if output._grad_fn is not None and not is_input:
                raise RuntimeError(
                    f"{cls.__name__}.forward returned a tensor that some other operation recorded; "
                    "return what it computes itself"
                )
            connect(output, ctx)
        return output

    @classmethod
    def _save(
        cls,
        ctx: FunctionCtx,
        tensors: list[Any],
        results: tuple[Any, ...],
        outputs: tuple[Any, ...],
    ) -> None:
        ctx._none_saved = tuple(each is None for each in ctx._to_save)
        saved = {}
        for index, tensor in enumerate(ctx._to_save):
            if tensor is None:
                continue
            edge: Any = (None, 0)
            is_output = False
            for position, candidate in enumerate(tensors):
                if tensor is candidate:
                    edge = ctx.next_functions[position]
            for position, candidate in enumerate(results):
                if tensor is candidate and outputs[position]._grad_fn is ctx:
                    edge, is_output = (None, position), True
            saved[str(index)] = SavedTensor(tensor, ctx, str(index), edge, is_output)
        ctx._saved = saved


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a Function's `backward` that is not differentiable: differentiating it raises."""

    @functools.wraps(backward)
    def run(ctx: FunctionCtx, *grads: Any) -> Any:
        with grad_mode.no_grad():
            result = backward(ctx, *grads)
        if not grad_mode.state.grad_enabled:
            return result
        # Whatever leads back to an input or an incoming gradient goes through a node that raises.
        paths = [each for each in grads if isinstance(each, TensorBase) and each._requires_grad]

        def guarded(each: Any) -> Any:
            if not isinstance(each, TensorBase):
                return each
            inputs = [tensor_from_edge(each, edge) for edge in ctx.next_functions if edge[0]]
            return _Once.apply(wrap(each._array, each._storage), *paths, *inputs)

        return tuple(map(guarded, result)) if isinstance(result, tuple) else guarded(result)

    return run


class _Once(Function):
    """Passes a gradient on, and raises when it is differentiated."""

    @staticmethod
    def forward(ctx: Any, grad: "Tensor", *paths: "Tensor") -> "Tensor":
        return grad

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "a backward marked once_differentiable was differentiated a second time; write it in "
            "differentiable operations and drop the mark, or do not pass create_graph=True"
        )
