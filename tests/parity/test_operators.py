"""Operators, and functions named like methods that change a tensor."""

from typing import Any

import pytest


def test_operators_leave_other_types_to_their_own(lib: Any) -> None:
    class Foreign:
        def __radd__(self, other: Any) -> str:
            return "radd"

        def __rmatmul__(self, other: Any) -> str:
            return "rmatmul"

    x = lib.ones(2)
    assert x + Foreign() == "radd"
    assert x @ Foreign() == "rmatmul"
    calls: list[Any] = [lambda: x - Foreign(), lambda: object() * x, lambda: x < object()]
    for operate in calls:
        with pytest.raises(TypeError, match=r"Foreign|object"):
            operate()


def test_functions_that_change_their_argument(lib: Any) -> None:
    x = lib.tensor([-1.0, 4.0])
    assert lib.relu_(x) is x
    assert lib.sqrt_(x) is x
    assert x.tolist() == [0.0, 2.0]
    assert lib.nn.functional.hardtanh_(x).tolist() == [0.0, 1.0]
    assert lib.nn.functional.threshold_(x, 0.5, 7.0).tolist() == [7.0, 1.0]
    assert x.tolist() == [7.0, 1.0]
