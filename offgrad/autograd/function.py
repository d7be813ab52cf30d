"""Function: user-defined differentiable operations, written as in PyTorch."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from offgrad.autograd import anomaly, grad_mode, override_state
from offgrad.autograd.forward_mode import for_tangents, forward_mode_with, keeps_tangents
from offgrad.autograd.function_node import FunctionCtx, FunctionNode
from offgrad.autograd.mutation import check_mutable, rewrite_history
from offgrad.autograd.node import gradient_edge, tensor_from_edge
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.tensor_base import TensorBase, describe, is_differentiable, wrap
from offgrad.autograd.views import CUSTOM, requires_grad, view_chain, view_of
from offgrad.memory import zeros
from offgrad.memory.storage import saver_observers

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class Function:
    """Base of user-defined differentiable operations.

    Subclass it with static methods ``forward(ctx, *args)`` (or ``forward(*args)`` together with
    ``setup_context(ctx, inputs, output)``) and ``backward(ctx, *grad_outputs)``; call it by
    ``apply(*args)``. Forward is not recorded. `backward` returns one gradient for each argument;
    the gradients are differentiable if it uses differentiable operations.
    """

    _node_class: type[FunctionNode] = FunctionNode

    def __init_subclass__(cls) -> None:
        # As in PyTorch, each Function has a node class named after it.
        cls._node_class = type(f"{cls.__name__}Backward", (FunctionNode,), {})

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: Functions are called by `apply`."""
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated, and a Function "
            f"is called by apply: use {type(self).__name__}.apply(...) and a static forward"
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Return the output tensor or a tuple of them."""
        raise NotImplementedError(
            "You must implement the forward function of a subclass of autograd.Function: a static "
            "method forward(ctx, *args)"
        )

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        """Save for backward; without this method, forward takes ctx and saves for backward."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: FunctionCtx, *grad_outputs: Any) -> Any:
        """Return a gradient for each argument of forward, None for those that are not tensors."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method of a Function: a static method "
            "backward(ctx, *grad_outputs)"
        )

    vjp = backward
    """Another name for `backward`; a Function defines one of them."""

    generate_vmap_rule = False
    """Kept for code that sets it: `vmap` calls a Function without its own rule for each sample."""

    @staticmethod
    def jvp(ctx: FunctionCtx, *grad_inputs: Any) -> Any:
        """Return the tangent of each output, given those of the arguments.

        That of a tensor without tangent is zeros, None after ``set_materialize_grads(False)``; that
        of other arguments is None. A Function without this method has its forward derivatives from
        `backward`.
        """
        raise NotImplementedError("this Function has no jvp: its tangents come from backward")

    @classmethod
    def _has_jvp(cls) -> bool:
        """Return whether the Function defines `jvp`."""
        return cls.jvp is not Function.jvp

    @classmethod
    def _transposed(cls, node: FunctionNode, grads: "Sequence[Tensor | None]") -> Any:
        """Return gradients of no value whose own backward computes the tangents by `jvp`."""
        return _Transposed.apply(node, *grads)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """Return the outputs for all samples, and the dimension of the samples in each.

        A subclass may define it; otherwise `vmap` calls the Function for each sample.

        Args:
            info: with `batch_size` and `randomness`.
            in_dims: the dimension of the samples in each argument, None for those that have none.
            args: the arguments of forward, with all samples.
        """
        raise NotImplementedError("this Function has no vmap; it is called for each sample")

    @classmethod
    def _backward(cls) -> Callable[..., Any]:
        if cls.vjp is Function.vjp:
            return cls.backward
        if cls.backward is not Function.backward:
            raise RuntimeError(
                f"Implementing both 'backward' and 'vjp' is not allowed, but {cls.__name__} does"
            )
        return cls.vjp

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` and record it if grad mode is on and an argument requires grad.

        With `setup_context`, keyword and default arguments of forward count among its arguments;
        without, keywords are passed on to forward.
        """
        has_setup_context = cls.setup_context is not Function.setup_context
        if has_setup_context:
            bound = inspect.signature(cls.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        if override_state.state.apply_function is not None:
            output = override_state.state.apply_function(cls, args, kwargs)
            if output is not NotImplemented:
                return output
        if keeps_tangents(args):
            return grad_mode.call(True, cls.apply, *map(for_tangents, args), **kwargs)
        tensors: list[Any] = [each for each in args if isinstance(each, TensorBase)]
        needs_input_grad = tuple(
            [isinstance(each, TensorBase) and requires_grad(each) for each in args]  # type: ignore[arg-type]
        )
        node = cls._node_class(cls, args)
        ctx = node.ctx
        ctx.needs_input_grad = needs_input_grad
        recorded = grad_mode.state.grad_enabled and any(needs_input_grad)
        if recorded:
            if anomaly.state.enabled:
                anomaly.record_line(node)
            node.needs_input_grad = needs_input_grad
            node.next_functions = tuple([gradient_edge(each) for each in tensors])
        if has_setup_context:
            output = grad_mode.call(False, cls.forward, *args, **kwargs)
            grad_mode.call(False, cls.setup_context, ctx, args, output)
        else:
            output = grad_mode.call(False, cls.forward, ctx, *args, **kwargs)
        results = output if isinstance(output, tuple) else (output,)
        if recorded:
            _check_dirty(node, results)
        make_output = _Outputs(node, tensors, recorded)
        outputs = tuple([make_output(each) for each in results])
        if recorded:
            node.output_metadata = tuple(make_output.metadata)
            _save(node, tensors, results, outputs)
        ctx._to_save = ctx._dirty = ctx._non_differentiable = ()
        return outputs if isinstance(output, tuple) else outputs[0]


class InplaceFunction(Function):
    """A Function with an attribute `inplace`; kept for old code."""

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace


class NestedIOFunction(Function):
    """Refused: old Functions with nested arguments. Use `Function`, whose arguments are flat."""

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise."""
        raise NotImplementedError(
            "NestedIOFunction is not supported; write a Function that takes the tensors themselves"
        )


BackwardCFunction = FunctionNode
FunctionMeta = type


def _ids(values: Iterable[Any]) -> set[int]:
    return set(map(id, values))


def _check_dirty(node: FunctionNode, results: Sequence[Any]) -> None:
    """Raise unless forward returns each dirty tensor, and a dirty view as the only result."""
    result_ids = _ids(results)
    for tensor in node.ctx._dirty:
        if id(tensor) not in result_ids:
            raise RuntimeError(
                "Some elements marked as dirty during the forward method were not returned as "
                f"output: {node.name()} kept a {describe(tensor)} back, whose change would have no "
                "gradient"
            )
        if tensor._base is not None and len(results) > 1:
            raise RuntimeError(
                "your Function modifies inplace an input that is a view of another Tensor: it must "
                f"be the only result of forward, but {node.name()} returned {len(results)}; change "
                "a clone, or the base"
            )


class _Outputs:
    """Makes the results of forward the outputs of the node, one after the other.

    Attributes:
        metadata: of the outputs so far.
    """

    def __init__(self, node: FunctionNode, tensors: Sequence[Any], recorded: bool) -> None:
        self.metadata: list[tuple[tuple[int, ...], Any]] = []
        self._node = node
        self._recorded = recorded
        self._inputs = _ids(tensors)
        self._dirty = _ids(node.ctx._dirty)
        self._non_differentiable = _ids(node.ctx._non_differentiable)

    def __call__(self, value: Any) -> Any:
        """Return `value`, a result of forward, as the next output."""
        number, node = len(self.metadata), self._node
        if not isinstance(value, TensorBase):
            self.metadata.append(((), None))
            return value
        result: Any = value
        self.metadata.append((result._array.shape, result._array.dtype))
        is_input = id(result) in self._inputs
        is_marked = id(result) in self._non_differentiable
        if id(result) in self._dirty:
            if not is_input:
                raise RuntimeError(
                    f"mark_dirty takes inputs of forward, but {node.name()} marked another "
                    f"{describe(result)}"
                )
            history = self._recorded and not is_marked
            check_mutable(result, f"{node.name()} (mark_dirty)", history)
            result._storage.write(node.name())
            if history:
                rewrite_history(result, (node, number))
            elif result._requires_grad:
                return wrap(result._array, result._storage)
            return result
        if is_input or result._grad_fn is node:  # an unchanged input, or a repeated result
            blocked_by = CUSTOM.format(node.name())
            result = view_of(result._array, result, view_chain(result, None, {}, 0, blocked_by))
        elif result._view_chain is not None:
            result._view_chain = result._view_chain._replace(blocked_by=CUSTOM.format(node.name()))
        if not self._recorded or is_marked or not is_differentiable(result._array.dtype):
            return result
        previous_node = result._grad_fn
        if previous_node is not None and previous_node.sequence_nr < node.sequence_nr:
            raise RuntimeError(
                f"{node.name()}: forward returned a {describe(result)} that {previous_node.name()} "
                "recorded before; return a tensor that forward computes, or an input"
            )
        node.attach(result, number)
        return result


def _save(
    node: FunctionNode, tensors: Sequence[Any], results: Sequence[Any], outputs: Sequence[Any]
) -> None:
    """Save the tensors passed to `save_for_backward`: inputs with their edges, outputs as such."""
    saved = {}
    raw: list[SavedTensor | None] = []
    dirty = _ids(node.ctx._dirty)
    # A changed view leads to the node through its base.
    output_nrs = {
        id(result): position
        for position, result in enumerate(results)
        if id(result) in dirty or getattr(outputs[position], "_grad_fn", None) is node
    }
    input_edges = dict(zip(map(id, tensors), node.next_functions, strict=True))
    for index, tensor in enumerate(node.ctx._to_save):
        if tensor is None:
            raw.append(None)
            continue
        edge: Any = (None, output_nrs.get(id(tensor), 0))
        is_output = id(tensor) in output_nrs
        if id(tensor) in input_edges and id(tensor) not in dirty:
            edge, is_output = input_edges[id(tensor)], False
        saved[str(index)] = SavedTensor(tensor, node, str(index), edge, is_output)
        raw.append(saved[str(index)])
    node._saved, node._raw_saved_tensors = saved, tuple(raw)
    for observer in tuple(saver_observers):
        for each in saved.values():
            observer(each)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a Function's `backward` that is not differentiable: a double backward raises."""

    @functools.wraps(backward)
    def run(ctx: FunctionCtx, *grads: Any) -> Any:
        result = grad_mode.call(False, backward, ctx, *grads)
        if not grad_mode.state.grad_enabled:
            return result
        # Connect each result with the inputs and the incoming gradients by a node that raises.
        grads_requiring_grad = [
            each for each in grads if isinstance(each, TensorBase) and each._requires_grad
        ]

        def delay_error(grad: Any) -> Any:
            if not isinstance(grad, TensorBase):
                return grad
            node = ctx._node()
            edges = () if node is None else node.next_functions
            inputs = [tensor_from_edge(grad, edge) for edge in edges if edge[0]]
            detached = wrap(grad._array, grad._storage)
            return _DelayedError.apply(detached, *grads_requiring_grad, *inputs)

        return tuple(map(delay_error, result)) if isinstance(result, tuple) else delay_error(result)

    return run


class _Transposed(Function):
    """Gradients of a Function's arguments, for their derivative alone: see `forward_ad`."""

    @staticmethod
    def forward(ctx: Any, node: FunctionNode, *grads: "Tensor") -> Any:
        ctx.node = node
        ctx.used = [each is not None for each in grads]
        ctx.set_materialize_grads(False)
        metadata = [
            None if target is None else target.output_metadata[output_nr]
            for target, output_nr in node.next_functions
        ]
        return tuple([None if each is None else wrap(zeros(*each)) for each in metadata])

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        node, of_tensors = ctx.node, iter(tangents)
        given = [None if each is None else next(of_tensors) for each in node._arguments]
        if node.ctx._materialize_grads:
            given = [
                wrap(zeros(*tensor))
                if each is None and tensor is not None and is_differentiable(tensor[1])
                else each
                for each, tensor in zip(given, node._arguments, strict=True)
            ]
        with forward_mode_with("is_in_jvp"):
            result = node.function.jvp(node.ctx, *given)
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(node.output_metadata):
            raise RuntimeError(
                f"{node.name()}: jvp must return a tangent, or None, for each of "
                f"{len(node.output_metadata)} outputs of forward, but returned {len(results)}"
            )
        # Of outputs that the result does not depend on, no tangent is asked.
        return None, *[
            each if is_used else None for each, is_used in zip(results, ctx.used, strict=True)
        ]


class _DelayedError(Function):
    """Returns a gradient unchanged; its backward raises."""

    @staticmethod
    def forward(ctx: Any, grad: "Tensor", *connected: "Tensor") -> "Tensor":
        return grad

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable; "
            "write its backward in differentiable "
            "operations and remove the decorator, or do not pass create_graph=True"
        )
