"""Phrases of PyTorch's errors of autograd, checkpoints and checks of gradients."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import leaf


def changed(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    z = y**2
    y.add_(1)
    z.sum().backward()


def twice(lib: Any) -> None:
    y = (leaf(lib, 1, 2) ** 2).sum()
    y.backward()
    y.backward()


def in_no_grad(lib: Any) -> None:
    x = leaf(lib, 1, 2) * 1
    with lib.no_grad():
        view = x[:1]
    view.add_(leaf(lib, 1))


def in_inference_mode(lib: Any) -> None:
    x = leaf(lib, 1, 2) * 1
    with lib.inference_mode():
        view = x[:1]
    view.add_(leaf(lib, 1))


def inference(lib: Any) -> Any:
    with lib.inference_mode():
        return lib.ones(2)


def of_function(lib: Any, forward: Any = None, backward: Any = None, **others: Any) -> Any:
    """Return the result of a Function with these methods, of a tensor that requires grad."""
    methods = {"forward": forward, "backward": backward}
    methods = {name: staticmethod(each) for name, each in methods.items() if each is not None}
    own: Any = type("Own", (lib.autograd.Function,), methods | others)
    return own.apply(leaf(lib, 1, 2) * 1)


def no_backward(lib: Any) -> None:
    of_function(lib, lambda ctx, x: x * 2).sum().backward()


def both_backwards(lib: Any) -> None:
    vjp = staticmethod(lambda ctx, g: g)
    of_function(lib, lambda ctx, x: x * 2, lambda ctx, g: g, vjp=vjp).sum().backward()


def own_view(lib: Any) -> None:
    of_function(lib, lambda ctx, x: x.view(2), lambda ctx, g: g).add_(1)


def not_returned(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.clone()

    of_function(lib, forward, lambda ctx, g: g)


def dirty_view(lib: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        x.add_(1)
        ctx.mark_dirty(x)
        return x, x.clone()

    own: Any = type(
        "Own",
        (lib.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(lambda ctx, *g: g[0])},
    )
    own.apply((leaf(lib, 1, 2) * 1)[:1])


def old_style(lib: Any) -> None:
    own: Any = type("Own", (lib.autograd.Function,), {"forward": lambda self, x: x})
    own()(leaf(lib, 1))


def inplace_pack(lib: Any) -> None:
    with lib.autograd.graph.saved_tensors_hooks(lambda x: x.add_(1), lambda x: x):
        (leaf(lib, 1) * 1) ** 2


def freed_hooks(lib: Any) -> None:
    y = leaf(lib, 1) ** 2
    raw = y.grad_fn._raw_saved_self
    y.backward()
    raw.register_hooks(lambda x: x, lambda x: x)


def freed(lib: Any) -> None:
    y = leaf(lib, 1) ** 2
    y.backward()
    y.grad_fn._saved_self


def after_mutation(lib: Any) -> None:
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        y = ((leaf(lib, 1) * 1) ** 2).sum()
    y.backward()


def unequal_dtypes(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    y.backward(complex(1, 1) * lib.ones(2))


def dual(lib: Any) -> None:
    ad = lib.autograd.forward_ad
    with ad.dual_level():
        ad.make_dual(lib.ones(2), lib.ones(3))


def dual_of_ints(lib: Any) -> None:
    ad = lib.autograd.forward_ad
    with ad.dual_level():
        ad.make_dual(lib.tensor([1]), lib.tensor([1]))


def nested_levels(lib: Any) -> None:
    ad = lib.autograd.forward_ad
    with ad.dual_level(), ad.dual_level():
        pass


def dual_twice(lib: Any) -> None:
    ad = lib.autograd.forward_ad
    with ad.dual_level():
        x = ad.make_dual(lib.ones(2), lib.ones(2))
        ad.make_dual(lib.ones(2), x)


def checkpointed(lib: Any, *functions: Any, use_reentrant: bool = False) -> None:
    """Call each function in turn, the first in the forward pass."""
    calls = iter(functions)
    run = lib.utils.checkpoint.checkpoint
    out = run(lambda x: next(calls)(x), leaf(lib, 1, 2), use_reentrant=use_reentrant)
    out.sum().backward()


def to_the_end(lib: Any) -> None:
    with lib.utils.checkpoint.set_checkpoint_early_stop(False):
        checkpointed(lib, lambda x: (x * 1).sin(), lambda x: (x * 1).sin().cos())


def wrong(lib: Any, factor: float, x: Any) -> Any:
    """Return twice `x`, with `factor` as the derivative."""
    methods = {
        "forward": staticmethod(lambda ctx, x: x * 2),
        "backward": staticmethod(lambda ctx, grad: grad * factor),
    }
    own: Any = type("Own", (lib.autograd.Function,), methods)
    return own.apply(x)


def functional(lib: Any) -> Any:
    return lib.autograd.functional


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation": changed,
    "Specify retain_graph=True": twice,
    "a leaf Variable that requires grad is being used in an in-place operation": lambda lib: leaf(
        lib, 1
    ).add_(1),
    "a view of a leaf Variable that requires grad is being used in an in-place operation": (
        lambda lib: leaf(lib, 1, 2)[:1].add_(1)
    ),
    "does not require grad and does not have a grad_fn": lambda lib: lib.ones(1).backward(),
    "Set allow_unused=True": lambda lib: lib.autograd.grad(leaf(lib, 1).sum(), leaf(lib, 1)),
    "you can only change requires_grad flags of leaf variables": lambda lib: (
        leaf(lib, 1) * 2
    ).requires_grad_(False),
    "grad can be implicitly created only for real scalar outputs": lambda lib: (
        leaf(lib, 1, dtype=lib.complex64) * 1
    ).backward(),
    "Mismatch in shape: grad_output[0] has a shape of torch.Size([2]) and output[0] has a shape of "
    "torch.Size([2, 2])": lambda lib: (leaf(lib, [1, 2], [3, 4]) * 2).backward(lib.ones(2)),
    "required to have the same dtype": unequal_dtypes,
    "`inputs` argument to `grad()` cannot be empty": lambda lib: lib.autograd.grad(
        leaf(lib, 1) * 2, []
    ),
    "If `is_grads_batched=True`, we interpret the first": lambda lib: lib.autograd.grad(
        [(x := leaf(lib, 1, 2)) * 2], [x], [lib.ones(3)], is_grads_batched=True
    ),
    "is a view and is being modified inplace. This view is the output of a function that returns "
    "multiple views": lambda lib: (leaf(lib, 1, 2) * 1).unbind()[0].add_(1),
    "A view was created in no_grad mode and is being modified inplace": in_no_grad,
    "A view was created in inference mode and is being modified inplace": in_inference_mode,
    "Inference tensors do not track version counter": lambda lib: inference(lib)._version,
    "Inference tensors cannot be saved for backward": lambda lib: leaf(lib, 1) * inference(lib),
    "Inplace update to inference tensor outside InferenceMode": lambda lib: inference(lib).add_(1),
    "post accumulate grad hooks cannot be registered on non-leaf tensors": lambda lib: (
        leaf(lib, 1) * 2
    ).register_post_accumulate_grad_hook(print),
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "This view was created inside a custom Function": own_view,
    "You must implement the forward function": lambda lib: of_function(lib),
    "must implement either the backward": no_backward,
    "Implementing both 'backward' and 'vjp'": both_backwards,
    "Legacy autograd function with non-static forward method is deprecated": old_style,
    "your Function modifies inplace an input that is a view of another Tensor": dirty_view,
    "Some elements marked as dirty during the forward method were not returned as output": (
        not_returned
    ),
}
SAVED: dict[str, Callable[[Any], Any]] = {
    "A saved tensor pack hook is modifying its input in place": inplace_pack,
    "after it has been freed": freed_hooks,
    "after they have already been freed": freed,
    "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context": after_mutation,
}
FORWARD: dict[str, Callable[[Any], Any]] = {
    "Trying to set a forward gradient that has a different size": dual,
    "Nested forward mode AD is not supported at the moment": nested_levels,
    "has a forward gradient at the same level": dual_twice,
    "to be floating point or complex": dual_of_ints,
}
CHECKPOINTS: dict[str, Callable[[Any], Any]] = {
    "A different number of tensors was saved": lambda lib: checkpointed(
        lib, lambda x: (x * 1).sin(), lambda x: x * 1
    ),
    "trying to save more tensors during recomputation": to_the_end,
    "Recomputed values for the following tensors have different": lambda lib: checkpointed(
        lib, lambda x: (x * 1).sin(), lambda x: (x[:1] * 1).sin()
    ),
    "tensors have different metadata": lambda lib: checkpointed(
        lib, lambda x: (x * 1).sin(), lambda x: (x[:1] * 1).sin()
    ),
    "this checkpoint() is not necessary": lambda lib: checkpointed(
        lib, lambda x: lib.ones(2), lambda x: lib.ones(2), use_reentrant=True
    ),
}
CHECKS: dict[str, Callable[[Any], Any]] = {
    "Jacobian mismatch for output 0 with respect to input 0": lambda lib: lib.autograd.gradcheck(
        lambda x: wrong(lib, 3, x), leaf(lib, 1, 2)
    ),
    "While considering the imaginary part of complex outputs only": lambda lib: (
        lib.autograd.gradcheck(lambda x: wrong(lib, 3, x), leaf(lib, 1, 2, dtype=lib.complex128))
    ),
    "at least one input tensor to require gradient": lambda lib: lib.autograd.gradcheck(
        lambda x: x, lib.ones(2, dtype=lib.float64)
    ),
    "has a dimension with stride 0": lambda lib: lib.autograd.gradcheck(
        lambda x: x * 2, lib.ones(1, dtype=lib.float64).expand(2).requires_grad_()
    ),
    "Numerical gradient for function expected to be zero": lambda lib: lib.autograd.gradcheck(
        lambda x: (x * 2).detach(), leaf(lib, 1, 2)
    ),
    "Expected at least one of": lambda lib: lib.autograd.gradcheck(
        lambda x: x * 2, leaf(lib, 1, 2), check_forward_ad=False, check_backward_ad=False
    ),
}
FUNCTIONAL: dict[str, Callable[[Any], Any]] = {
    "The inputs given to vjp must be either a Tensor": lambda lib: functional(lib).vjp(
        lambda x: x, 1
    ),
    "The outputs of the user-provided function given to vjp must": lambda lib: functional(lib).vjp(
        lambda x: 1, leaf(lib, 1)
    ),
    "The outputs of the user-provided function given to jacobian must": lambda lib: functional(
        lib
    ).jacobian(lambda x: 1, leaf(lib, 1)),
    "The v given to vhp must be either a Tensor or a tuple of Tensors": lambda lib: functional(
        lib
    ).vhp(lambda x: x.sum(), leaf(lib, 1, 2), 1),
    "The vector v can only be None if the user-provided function returns": lambda lib: functional(
        lib
    ).vjp(lambda x: x, leaf(lib, 1, 2)),
    "The given v should contain a single Tensor": lambda lib: functional(lib).vjp(
        lambda x: x, leaf(lib, 1, 2), (lib.ones(2), lib.ones(2))
    ),
    "v has invalid size: should be torch.Size([2]) but got torch.Size([3])": lambda lib: functional(
        lib
    ).vjp(lambda x: x, leaf(lib, 1, 2), lib.ones(3)),
    "Output 0 of the user-provided function does not require gradients": lambda lib: functional(
        lib
    ).vjp(lambda x: lib.ones(()), leaf(lib, 1), strict=True),
    "The output of the user-provided function is independent of input 0": lambda lib: functional(
        lib
    ).vjp(lambda x, y: y, (leaf(lib, 1), leaf(lib, 1)), strict=True),
    "jacobian of the user-provided function is independent of input 0": lambda lib: functional(
        lib
    ).jacobian(lambda x: x.clone(), leaf(lib, 1), create_graph=True, strict=True),
    "not supported together": lambda lib: functional(lib).jacobian(
        lambda x: x, leaf(lib, 1), vectorize=True, strict=True
    ),
    "The Tensor returned by the function given to hessian should contain a single element": (
        lambda lib: functional(lib).hessian(lambda x: x, leaf(lib, 1, 2))
    ),
}
PROGRAMS = GRADIENTS | FUNCTIONS | SAVED | FORWARD | CHECKPOINTS | CHECKS | FUNCTIONAL


ERRORS = RuntimeError, TypeError, ValueError, AssertionError


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("phrase", PROGRAMS)
def test_phrases(lib: Any, phrase: str) -> None:
    with pytest.raises(ERRORS, match=re.escape(phrase)):
        PROGRAMS[phrase](lib)


def test_reentrant_is_asked_for(lib: Any) -> None:
    with pytest.warns(UserWarning, match="the use_reentrant parameter should be passed explicitly"):
        lib.utils.checkpoint.checkpoint(lambda x: x * 1, leaf(lib, 1))
