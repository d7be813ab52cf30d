"""Conversions of complex values to real dtypes warn that the imaginary part is lost, once."""

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from offgrad.ops._core import dtypes
from tests.parity.conftest import builtin_class

Use = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _warn_always(lib_name: str | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each library warn again, if the process has already had its warning."""
    monkeypatch.setattr(dtypes, "_has_warned_of_complex", False)
    if lib_name != "torch":
        yield
        return
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def _complex(lib: Any, *shape: int) -> Any:
    return lib.ones(shape, dtype=lib.complex64) * (1 + 2j)


def _set(index: Any, *shape: int) -> Use:
    def use(lib: Any) -> Any:
        x = lib.zeros(3)
        x[index] = _complex(lib, *shape)
        return x

    return use


def _to(name: str) -> Use:
    return lambda lib: _complex(lib, 3).to(getattr(lib, name))


def _backward_of_a_conversion(lib: Any) -> Any:
    x = lib.ones(3, dtype=lib.complex64, requires_grad=True)
    x.to(lib.float32).sum().backward()
    return x.grad


WARN: dict[str, Use] = {
    "x[0] = tensor": _set(0),
    "x[:] = tensor": _set(slice(None), 3),
    "x[0] = tensor of one element": _set(0, 1),
    "copy_": lambda lib: lib.zeros(3).copy_(_complex(lib, 3)),
    "copy_, no imaginary part": lambda lib: lib.zeros(3).copy_(lib.ones(3, dtype=lib.complex64)),
    "copy_ of a number": lambda lib: lib.zeros(3).copy_(1 + 2j),
    "copy_ to integers": lambda lib: lib.zeros(3, dtype=lib.int64).copy_(_complex(lib, 3)),
    "fill_": lambda lib: lib.zeros(3).fill_(_complex(lib)),
    "to float32": _to("float32"),
    "to int64": _to("int64"),
    "to like": lambda lib: _complex(lib, 3).to(lib.zeros(3)),
    "type_as": lambda lib: _complex(lib, 3).type_as(lib.zeros(3)),
    "float": lambda lib: _complex(lib, 3).float(),
    "double": lambda lib: _complex(lib, 3).double(),
    "half": lambda lib: _complex(lib, 3).half(),
    "int": lambda lib: _complex(lib, 3).int(),
    "long": lambda lib: _complex(lib, 3).long(),
    "as_tensor": lambda lib: lib.as_tensor(_complex(lib, 3), dtype=lib.float32),
    "as_tensor of an array": lambda lib: lib.as_tensor(_complex(lib, 3).numpy(), dtype=lib.float32),
    "tensor of an array": lambda lib: lib.tensor(_complex(lib, 3).numpy(), dtype=lib.float32),
    "sum": lambda lib: _complex(lib, 3).sum(dtype=lib.float32),
    "mean": lambda lib: _complex(lib, 3).mean(dtype=lib.float32),
    "prod": lambda lib: lib.ones(3, dtype=lib.complex64).prod(dtype=lib.float32),
    "cumsum": lambda lib: _complex(lib, 3).cumsum(0, dtype=lib.float32),
    "select_scatter": lambda lib: lib.select_scatter(lib.zeros(3), _complex(lib), 0, 0),
    "slice_scatter": lambda lib: lib.slice_scatter(lib.zeros(3), _complex(lib, 3), 0),
    "diagonal_scatter": lambda lib: lib.diagonal_scatter(lib.zeros(3, 3), _complex(lib, 3)),
    "backward of a conversion": _backward_of_a_conversion,
}


def _backward_of_a_promotion(lib: Any) -> Any:
    x = lib.ones(3, requires_grad=True)
    (x * _complex(lib, 3)).sum().backward(lib.tensor(1 + 1j))
    return x.grad


def _backward_to_float64(lib: Any) -> Any:
    x = lib.ones(3, dtype=lib.float64, requires_grad=True)
    x.to(lib.complex64).sum().backward(lib.tensor(1 + 1j))
    return x.grad


SILENT: dict[str, Use] = {
    "to bool": _to("bool"),
    "copy_ to bool": lambda lib: lib.zeros(3, dtype=lib.bool).copy_(_complex(lib, 3)),
    "nothing": _set(slice(0, 0), 0),
    "to complex": _to("complex128"),
    "real": lambda lib: _complex(lib, 3).real,
    "abs": lambda lib: _complex(lib, 3).abs(),
    "a number without imaginary part": lambda lib: lib.zeros(3).fill_(2 + 0j),
    "backward of a promotion": _backward_of_a_promotion,
    "backward of a power": lambda lib: (
        (lib.ones(3, requires_grad=True) ** _complex(lib, 3)).sum().backward(lib.tensor(1 + 1j))
    ),
    "backward of rfft": lambda lib: (
        lib.fft.fft(lib.ones(4, requires_grad=True)).sum().backward(lib.tensor(1 + 1j))
    ),
    "backward of cat": lambda lib: (
        lib.cat([lib.ones(3, requires_grad=True), _complex(lib, 3)])
        .sum()
        .backward(lib.tensor(1 + 1j))
    ),
    "backward to float64": _backward_to_float64,
}

RAISE: dict[str, Use] = {
    "x[[0]] = tensor": _set([0], 1),
    "x[0] = 1j": lambda lib: lib.zeros(3).__setitem__(0, 1j),
    "add_": lambda lib: lib.zeros(3).add_(_complex(lib, 3)),
    "index_copy_": lambda lib: lib.zeros(3).index_copy_(0, lib.tensor([0]), _complex(lib, 1)),
    "index_fill_": lambda lib: lib.zeros(3).index_fill_(0, lib.tensor([0]), _complex(lib)),
    "masked_fill_": lambda lib: lib.zeros(3).masked_fill_(lib.zeros(3) == 0, _complex(lib)),
    "put_": lambda lib: lib.zeros(3).put_(lib.tensor([0]), _complex(lib, 1)),
    "scatter_": lambda lib: lib.zeros(3).scatter_(0, lib.tensor([0]), _complex(lib, 1)),
}


def _run(lib: Any, use: Use) -> tuple[Any, list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = use(lib)
    return result, caught


@pytest.mark.parametrize("name", WARN)
def test_a_lost_imaginary_part_is_told(lib: Any, name: str) -> None:
    result, caught = _run(lib, WARN[name])
    assert [each.category for each in caught] == [UserWarning]
    assert "Casting complex values to real discards" in str(caught[0].message)
    assert caught[0].filename == __file__
    values = result.flatten().tolist()
    if name == "diagonal_scatter":
        values = result.diagonal().tolist()
    assert values[0] in (1, 3), values  # the real part, or its sum


@pytest.mark.parametrize("name", SILENT)
def test_no_warning_where_nothing_is_lost(lib: Any, name: str) -> None:
    _, caught = _run(lib, SILENT[name])
    assert caught == []


@pytest.mark.parametrize("name", RAISE)
def test_complex_values_that_are_refused(lib: Any, name: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        RAISE[name](lib)
    assert builtin_class(raised.value) is RuntimeError


def test_gradients_of_real_tensors_are_real(lib: Any) -> None:
    assert _backward_of_a_promotion(lib).tolist() == [3.0] * 3
    assert _backward_to_float64(lib).tolist() == [1.0] * 3
    assert _backward_to_float64(lib).dtype == lib.float64


def test_one_warning_in_a_process(lib: Any) -> None:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"import {lib.__name__} as lib, warnings\n"
        "warnings.simplefilter('always')\n"
        "for _ in range(3):\n"
        "    lib.zeros(3)[0] = lib.tensor(1j)\n"
        "    lib.tensor(1j).to(lib.float32)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("Casting complex values to real discards") == 1, done.stderr
