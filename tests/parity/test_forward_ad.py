"""Dual tensors: tangents of results."""

from typing import Any

import pytest

from tests.parity.conftest import leaf, lists

# torch compiles formulas of its own by a deprecated compiler.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def ad(lib: Any) -> Any:
    return lib.autograd.forward_ad


def pair(lib: Any) -> tuple[Any, Any]:
    return lib.tensor([1.0, 2.0], dtype=lib.float64), lib.tensor([1.0, 0.5], dtype=lib.float64)


FUNCTIONS: dict[str, Any] = {
    "itself": lambda lib, x: x,
    "copy": lambda lib, x: x.clone(),
    "sum with a number": lambda lib, x: 1 + x + 1,
    "sum with a tensor": lambda lib, x: x + lib.ones(2, dtype=lib.float64),
    "difference in place": lambda lib, x: x.clone().sub_(1),
    "added to another": lambda lib, x: lib.zeros(2, dtype=lib.float64).add_(x),
    "no dependence": lambda lib, x: x * 0 + lib.ones(2, dtype=lib.float64),
    "product": lambda lib, x: x * x * 3,
    "reduction": lambda lib, x: (x.exp() * lib.ones(2, dtype=lib.float64)).sum(),
    "view": lambda lib, x: x.view(1, 2)[0].flip(0),
    "matrix": lambda lib, x: lib.stack([x, x.sin()]) @ x,
    "linear": lambda lib, x: 3 * x + 1,
    "in place": lambda lib, x: x.clone().mul_(3).add_(x),
    "in place on the dual": lambda lib, x: x.mul_(2),
    "complex": lambda lib, x: (x * (1 + 2j)) ** 2,
    "layer": lambda lib, x: lib.nn.functional.gelu(lib.nn.functional.layer_norm(x, (2,))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tangents(lib: Any, name: str) -> None:
    x, v = pair(lib)
    fw = ad(lib)
    with fw.dual_level():
        out = fw.unpack_dual(FUNCTIONS[name](lib, fw.make_dual(x.clone(), v.clone())))
        assert not out.primal.requires_grad
        assert not out.tangent.requires_grad
    expected = lib.autograd.functional.jvp(lambda x: FUNCTIONS[name](lib, x * 1), x, v)
    for found, each in zip(out, expected, strict=True):
        assert found.dtype == each.dtype
        assert (found - each).abs().max() < 1e-12


def test_what_has_no_tangent(lib: Any) -> None:
    x, v = pair(lib)
    fw = ad(lib)
    assert fw.unpack_dual(x) == (x, None) or fw.unpack_dual(x).tangent is None
    with fw.dual_level() as level:
        assert level == 0
        dual = fw.make_dual(x, v)
        assert fw.unpack_dual(x).tangent is None
        assert fw.unpack_dual(dual.detach()).tangent is None
        assert fw.unpack_dual(dual).tangent is v
        assert dual.data_ptr() == x.data_ptr()
        out = dual * 2
    assert fw.unpack_dual(out).tangent is None
    assert fw.unpack_dual(dual).tangent is None


def test_several_dual_tensors(lib: Any) -> None:
    x, v = pair(lib)
    fw = ad(lib)
    with fw.dual_level():
        a, b = fw.make_dual(x, v), fw.make_dual(x * 2, lib.ones_like(x))
        assert lists([fw.unpack_dual(a * b).tangent]) == [[3, 4]]
        assert lists([fw.unpack_dual(a * a.detach()).tangent]) == [[1, 1]]


def test_tangents_can_be_differentiated(lib: Any) -> None:
    x, v = leaf(lib, 1, 2), pair(lib)[1]
    fw = ad(lib)
    with fw.dual_level():
        out = fw.unpack_dual(fw.make_dual(x, v) ** 3)
        assert out.primal.requires_grad
    assert lists([out.tangent]) == [[3, 6]]
    assert lists(lib.autograd.grad(out.tangent.sum(), x)) == [[6, 6]]


def test_errors(lib: Any) -> None:
    x, v = pair(lib)
    fw = ad(lib)
    with pytest.raises(RuntimeError, match="no level exists"):
        fw.make_dual(x, v)
    with pytest.raises(RuntimeError):
        fw.exit_dual_level()
    with fw.dual_level():
        dual = fw.make_dual(x, v)
        with pytest.raises(RuntimeError, match="Nested forward mode"):
            fw.enter_dual_level()
        with pytest.raises(RuntimeError, match="different size"):
            fw.make_dual(x, v[:1])
        for arguments in ((x.long(), v), (x, v.long())):
            with pytest.raises(ValueError, match="floating point or complex"):
                fw.make_dual(*arguments)
        for arguments in ((dual, v), (x, dual)):
            with pytest.raises(RuntimeError, match="same level"):
                fw.make_dual(*arguments)
        with pytest.raises(TypeError):
            fw.unpack_dual(3)
        with pytest.raises(RuntimeError):
            fw.unpack_dual(dual, level=5)
    with pytest.raises(RuntimeError):
        fw.exit_dual_level(level=3)
