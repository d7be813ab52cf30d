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
