"""Phrases of PyTorch's errors that code and people match on."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import leaf


def constant_in_place(lib: Any) -> None:
    leaf(lib, 1, 2)[:1].add_(1)


def changed(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    z = y**2
    y.add_(1)
    z.sum().backward()


def twice(lib: Any) -> None:
    y = (leaf(lib, 1, 2) ** 2).sum()
    y.backward()
    y.backward()


def inference(lib: Any) -> Any:
    with lib.inference_mode():
        return lib.ones(2)


def cleared_hooks(lib: Any) -> None:
    y = leaf(lib, 1) ** 2
    raw = y.grad_fn._raw_saved_self
    y.backward()
    raw.register_hooks(lambda x: x, lambda x: x)


def own_gradient(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    x.grad = x


PHRASES: dict[str, Callable[[Any], Any]] = {
    "a leaf Variable that requires grad": lambda lib: leaf(lib, 1, 2).add_(1),
    "leaf Variable that requires grad": constant_in_place,
    "is a view and is being modified inplace": lambda lib: (
        (leaf(lib, 1, 2) * 1).unbind()[0].add_(1)
    ),
    "modified by an inplace operation": changed,
    "Trying to backward through the graph a second time": twice,
    "retain_graph=True": twice,
    "element 0 of tensors does not require grad": lambda lib: lib.ones(1).backward(),
    "appears to not have been used": lambda lib: lib.autograd.grad(
        leaf(lib, 1).sum(), leaf(lib, 1)
    ),
    "One of the differentiated Tensors does not require grad": lambda lib: lib.autograd.grad(
        leaf(lib, 1).sum(), lib.ones(1)
    ),
    "grad can be implicitly created only for scalar outputs": lambda lib: leaf(
        lib, 1, 2
    ).backward(),
    "Mismatch in shape": lambda lib: (leaf(lib, 1, 2) * 2).backward(lib.ones(3)),
    "Inplace update to inference tensor": lambda lib: inference(lib).add_(1),
    "Inference tensors cannot be saved": lambda lib: leaf(lib, 1, 2) * inference(lib),
    "Inference tensors do not track version": lambda lib: inference(lib)._version,
    "dtype can require gradients": lambda lib: lib.tensor([1], requires_grad=True),
    "leaf variables": lambda lib: (leaf(lib, 1) * 2).requires_grad_(False),
    "can't retain_grad on Tensor": lambda lib: lib.ones(1).retain_grad(),
    "cannot register a hook on a": lambda lib: lib.ones(1).register_hook(print),
    "post accumulate grad hooks": lambda lib: (leaf(lib, 1) * 2).register_post_accumulate_grad_hook(
        print
    ),
    "can't assign Variable as its own grad": own_gradient,
    "Can't call numpy() on Tensor that requires grad": lambda lib: leaf(lib, 1).numpy(),
    "Can't detach views in-place": lambda lib: (leaf(lib, 1, 2) * 1)[:1].detach_(),
    "elements cannot be converted to Scalar": lambda lib: lib.ones(2).item(),
    "Boolean value of Tensor with": lambda lib: bool(lib.ones(2)),
    "only one element tensors can be converted to Python scalars": lambda lib: float(lib.ones(2)),
    "only integer tensors of a single element can be converted to an index": lambda lib: [1, 2][
        lib.ones(())
    ],
    "len() of a 0-d tensor": lambda lib: len(lib.ones(())),
    "iteration over a 0-d tensor": lambda lib: list(lib.ones(())),
    "support the deepcopy protocol": lambda lib: copy.deepcopy(leaf(lib, 1) * 2),
    "Calling register_hooks on a saved tensor": cleared_hooks,
    "does not require gradients": lambda lib: lib.autograd.functional.jacobian(
        lambda x: lib.ones(1), leaf(lib, 1), strict=True
    ),
    "is independent of input 1": lambda lib: lib.autograd.functional.jacobian(
        lambda x, y: x, (leaf(lib, 1), leaf(lib, 1)), strict=True
    ),
    "v can only be None if": lambda lib: lib.autograd.functional.vjp(lambda x: x, leaf(lib, 1, 2)),
    "mat1 and mat2 shapes cannot be multiplied (4x3 and 5x2)": lambda lib: lib.nn.Linear(5, 2)(
        lib.ones(4, 3)
    ),
    "mat1 and mat2 shapes cannot be multiplied (8x3 and 5x2)": lambda lib: lib.nn.Linear(5, 2)(
        lib.ones(2, 4, 3)
    ),
    "mat1 and mat2 shapes cannot be multiplied (4x3 and 4x2)": lambda lib: (
        lib.ones(4, 3) @ lib.ones(4, 2)
    ),
    "The size of tensor a (3) must match the size of tensor b (5) at non-singleton dimension 1": (
        lambda lib: lib.ones(4, 3) + lib.ones(5)
    ),
    "The size of tensor a (4) must match the size of tensor b (2) at non-singleton dimension 0": (
        lambda lib: lib.ones(4, 3) * lib.ones(2, 1)
    ),
    "Dimension out of range": lambda lib: lib.ones(2).sum(5),
    "shape '[5, 2]' is invalid for input of size 12": lambda lib: lib.ones(4, 3).view(5, 2),
    "size mismatch for weight: copying a param with shape torch.Size([2, 4]) from checkpoint, "
    "the shape in current model is torch.Size([2, 3]).": lambda lib: lib.nn.Linear(
        3, 2
    ).load_state_dict(lib.nn.Linear(4, 2).state_dict()),
    "index out of range in self": lambda lib: lib.nn.Embedding(3, 2)(lib.tensor([3])),
    "Target 3 is out of bounds": lambda lib: lib.nn.functional.cross_entropy(
        lib.ones(2, 3), lib.tensor([0, 3])
    ),
    "Target 7 is out of bounds": lambda lib: lib.nn.functional.nll_loss(
        lib.ones(2, 3), lib.tensor([7, 0])
    ),
    "Expected input batch_size (4) to match target batch_size (2)": (
        lambda lib: lib.nn.functional.cross_entropy(lib.ones(4, 3), lib.tensor([0, 1]))
    ),
    "stack expects each tensor to be equal size": lambda lib: lib.stack([lib.ones(2), lib.ones(3)]),
    "Sizes of tensors must match except in dimension 0": lambda lib: lib.cat(
        [lib.ones(4, 3), lib.ones(4, 4)]
    ),
    "too many dimensions 'str'": lambda lib: lib.tensor(["a"]),
    "have the same dtype": lambda lib: lib.ones(2, 2) @ lib.ones(2, 2, dtype=lib.float64),
}


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases(lib: Any, phrase: str) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError), match=re.escape(phrase)):
        PHRASES[phrase](lib)
