"""Function: differentiable operations of the user's own, written as in PyTorch."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from offgrad.autograd import grad_mode
from offgrad.autograd.mutation import check_mutable
from offgrad.autograd.node import Grads, Node, connect, gradient_edge, tensor_from_edge
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.tensor_base import (
    TensorBase,
    describe,
    is_differentiable,
    is_stale,
    view_of,
    wrap,
)
from offgrad.memory import zeros

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


class FunctionCtx:
    """What a Function's `forward` and `backward` share: the ``ctx`` argument.

    Attributes may be set on it. Tensors that backward needs belong into `save_for_backward`: so
    they are checked for in-place changes, offloaded by policies, and freed with the graph.

    Attributes:
        needs_input_grad: for each argument of forward, whether its gradient is wanted.
    """

    needs_input_grad: tuple[bool, ...]

    def __init__(self, node: "FunctionNode") -> None:
        self._node = ref(node)
        self._to_save: tuple[Tensor | None, ...] = ()
        self._none_saved: tuple[bool, ...] = ()
        self._dirty: tuple[Tensor, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._materialize_grads = True

    def __getattr__(self, name: str) -> Any:
        # In PyTorch the two are one object: what the node has, such as metadata, is found here.
        node = self.__dict__["_node"]()
        if node is not None and not name.startswith("_") and hasattr(type(node), name):
            return object.__getattribute__(node, name)
        raise AttributeError(f"ctx has no attribute {name!r}; was it set in forward?")

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
        node = self._node()
        if node is None or (self._to_save and not self._none_saved):
            return self._to_save
        return tuple(
            None if is_none else node._saved[str(index)].unpack()
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


class FunctionNode(Node):
    """The node of a user-defined Function; attributes it lacks are those of its ctx."""

    runs_without_grad = True

    def __init__(self, function: type["Function"]) -> None:
        super().__init__()
        self.function = function
        self.ctx = FunctionCtx(self)

    def __getattr__(self, name: str) -> Any:
        if name != "ctx" and hasattr(self.ctx, name):
            return getattr(self.ctx, name)
        return super().__getattr__(name)

    def name(self) -> str:
        """Return the name PyTorch prints: that of the Function with ``Backward``."""
        return f"{self.function.__name__}Backward"

    def run(self, grads: Grads) -> Grads:
        """Call the Function's backward and check what it returns."""
        if self.ctx._materialize_grads:
            grads = tuple(
                wrap(zeros(shape, dtype)) if grad is None and dtype is not None else grad
                for grad, (shape, dtype) in zip(grads, self.output_metadata, strict=True)
            )
        result = self.function.backward(self.ctx, *grads)
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
        node = FunctionNode(cls)
        ctx = node.ctx
        tensors = [each if isinstance(each, TensorBase) else None for each in args]
        ctx.needs_input_grad = tuple(
            each is not None and (each._requires_grad or is_stale(each)) for each in tensors
        )
        recorded = grad_mode.state.grad_enabled and any(ctx.needs_input_grad)
        if recorded:
            node.needs_input_grad = ctx.needs_input_grad
            node.next_functions = tuple(
                (None, 0) if each is None else gradient_edge(each)  # type: ignore[arg-type]
                for each in tensors
            )
        with grad_mode.no_grad():
            if cls.setup_context is Function.setup_context:
                output = cls.forward(ctx, *args)
            else:
                output = cls.forward(*args)
                cls.setup_context(ctx, args, output)
        results = output if isinstance(output, tuple) else (output,)
        outputs = tuple(cls._output(node, each, tensors, recorded) for each in results)
        if recorded:
            cls._save(node, tensors, results, outputs)
            ctx._to_save = ()
        ctx._dirty = ctx._non_differentiable = ()
        return outputs if isinstance(output, tuple) else outputs[0]

    @classmethod
    def _output(cls, node: FunctionNode, value: Any, tensors: list[Any], recorded: bool) -> Any:
        """Return `value` as an output of the node."""
        if not isinstance(value, TensorBase):
            if recorded:
                node.output_metadata += (((), None),)
            return value
        result: Any = value
        is_input = any(result is each for each in tensors)
        if any(result is each for each in node.ctx._dirty):
            if not is_input:
                raise RuntimeError(
                    f"mark_dirty takes inputs of {cls.__name__}.forward, got another "
                    f"{describe(result)}"
                )
            check_mutable(result, f"{cls.__name__} (mark_dirty)", recorded)
            result._storage.write(node.name())
            result._generation += recorded
            output = result
        elif is_input or result._grad_fn is node:  # returned as it came, or a second time
            output = view_of(result._array, result)
        else:
            output = result
        if not recorded:
            return output
        marked = any(result is each for each in node.ctx._non_differentiable)
        if marked or not is_differentiable(output._array.dtype):
            node.output_metadata += ((output._array.shape, output._array.dtype),)
        else:
            if output._grad_fn is not None and not is_input:
                raise RuntimeError(
                    f"{cls.__name__}.forward returned a tensor that some other operation recorded; "
                    "return what it computes itself"
                )
            connect(output, node)
        return output

    @classmethod
    def _save(
        cls,
        node: FunctionNode,
        tensors: list[Any],
        results: tuple[Any, ...],
        outputs: tuple[Any, ...],
    ) -> None:
        ctx = node.ctx
        ctx._none_saved = tuple(each is None for each in ctx._to_save)
        saved = {}
        for index, tensor in enumerate(ctx._to_save):
            if tensor is None:
                continue
            edge: Any = (None, 0)
            is_output = False
            for position, candidate in enumerate(tensors):
                if tensor is candidate:
                    edge = node.next_functions[position]
            for position, candidate in enumerate(results):
                if tensor is candidate and outputs[position]._grad_fn is node:
                    edge, is_output = (None, position), True
            saved[str(index)] = SavedTensor(tensor, node, str(index), edge, is_output)
        node._saved = saved


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
            node = ctx._node()
            edges = () if node is None else node.next_functions
            inputs = [tensor_from_edge(each, edge) for edge in edges if edge[0]]
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
