"""Functions pickle by name, as PyTorch's do: modules that hold some can be saved whole."""

import pickle
import types
from typing import Any

import pytest

import offgrad


@pytest.mark.parametrize(
    "module",
    [offgrad, offgrad.nn.functional, offgrad.linalg, offgrad.special, offgrad.fft],
    ids=lambda module: module.__name__,
)
def test_functions(module: Any) -> None:
    functions = [getattr(module, name) for name in module.__all__]
    functions = [each for each in functions if isinstance(each, types.FunctionType)]
    assert len(functions) > 10
    for each in functions:
        assert pickle.loads(pickle.dumps(each)) is each


def test_tensors_keep_strides_and_attributes() -> None:
    x = offgrad.arange(24.0).view(2, 3, 4)
    for view in (x, x.permute(2, 0, 1), x[:, :, 0], x.mT, x[0, 0, 0], x[:0], x[0].expand(5, 3, 4)):
        back = pickle.loads(pickle.dumps(view))
        assert back.tolist() == view.tolist()
        if view.numel() == 24:
            assert back.stride() == view.stride()
    tagged: Any = offgrad.nn.Parameter(offgrad.ones(2))
    tagged.tag = "t"
    back = pickle.loads(pickle.dumps(tagged))
    assert (type(back), back.tag, back.requires_grad) == (offgrad.nn.Parameter, "t", True)
