"""Names that old code uses: Variable, multithreading, kinds of Functions."""

from typing import Any

import pytest

from tests.parity.conftest import leaf


def test_variables_are_tensors_without_a_history(lib: Any) -> None:
    variable = lib.autograd.Variable
    x = lib.ones(2)
    assert variable(x, requires_grad=True).requires_grad
    assert not variable(leaf(lib, 1, 2) * 2).requires_grad
    assert variable(x).data_ptr() == x.data_ptr()
    assert variable(x) is not x
    assert isinstance(x, variable)
    assert not isinstance(3, variable)
    assert variable().shape == (0,)
    assert type(variable(lib.nn.Parameter(x))) is lib.Tensor
    for wrong in (3, [1.0]):
        with pytest.raises(TypeError, match="has to be a tensor"):
            variable(wrong)
    with pytest.warns(UserWarning, match="volatile"):
        variable(x, volatile=True)


def test_multithreading_is_a_setting(lib: Any) -> None:
    autograd = lib.autograd
    assert autograd.is_multithreading_enabled()
    with autograd.set_multithreading_enabled(False):
        assert not autograd.is_multithreading_enabled()
        leaf(lib, 1, 2).sum().backward()
    assert autograd.is_multithreading_enabled()
    autograd.set_multithreading_enabled(False)
    assert not autograd.is_multithreading_enabled()
    autograd.set_multithreading_enabled(True)
    with pytest.raises(TypeError):
        autograd.set_multithreading_enabled("no")


def test_kinds_of_functions(lib: Any) -> None:
    function = lib.autograd.function

    class Double(function.InplaceFunction):  # type: ignore[name-defined, misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    out = Double.apply(leaf(lib, 1, 2))
    assert isinstance(out.grad_fn, function.BackwardCFunction)
    assert isinstance(Double, function.FunctionMeta)
    assert Double.generate_vmap_rule is False
    for name, arguments in (("jvp", (None,)), ("vmap", (None, None))):
        with pytest.raises(NotImplementedError):
            getattr(Double, name)(*arguments)


def test_private_names_that_code_uses(lib: Any) -> None:
    x = lib.ones(2)
    with lib.autograd._unsafe_preserve_version_counter(x):
        x.add_(1)
    assert (x.tolist(), x._version) == ([2, 2], 0)
    a, b = lib.ones(2), lib.ones(1, 1)
    basis = lib.autograd.functional._construct_standard_basis_for((a, b), (2, 1))
    assert [each.tolist() for each in basis] == [[[1, 0], [0, 1], [0, 0]], [[0], [0], [1]]]
