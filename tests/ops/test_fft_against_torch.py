"""Fourier transforms against torch's: values, gradients, dtypes, names, classes of errors."""

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import offgrad
from offgrad import fft
from tests.ops.opspec import Array

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

LINES = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
GRIDS = [f"{name}{suffix}" for name in LINES for suffix in "2n"]
REAL = {"rfft", "ihfft", "rfft2", "ihfft2", "rfftn", "ihfftn"}
NORMS = [None, "backward", "ortho", "forward"]
DTYPES = ["float32", "float64", "complex64", "complex128", "int64", "uint8", "bool"]


def _random(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    values = 3 * rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 3j * rng.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def _array(tensor: Any) -> Array:
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.resolve_conj()
    return np.asarray(tensor.detach().numpy())


def _compare(mine: Any, theirs: Any, what: str) -> None:
    have, want = _array(mine), _array(theirs)
    assert have.shape == want.shape, what
    assert have.dtype == want.dtype, what
    tolerance, rounding = (1e-4, 1e-6) if have.dtype.char in "fF" else (1e-10, 1e-14)
    # Each element is a sum of all, so some ten roundings of the largest are in it.
    bound = max(tolerance, rounding * np.abs(want).max(initial=0))
    np.testing.assert_allclose(have, want, tolerance, bound, err_msg=what)


def _call(m: Any, name: str, array: Array, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return the input and the result, or the error instead."""
    tensor: Any = torch.from_numpy(array.copy()) if m is torch else offgrad.tensor(array)
    if array.dtype.kind in "fc":
        tensor.requires_grad_()
    try:
        return tensor, getattr(m.fft, name)(tensor, **options)
    except (RuntimeError, IndexError, TypeError) as error:
        return tensor, error


@st.composite
def _calls(draw: st.DrawFn) -> tuple[str, Array, dict[str, Any]]:
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple))
    name = draw(st.sampled_from(LINES + GRIDS))
    dtypes = [each for each in DTYPES if name not in REAL or each[0] != "c"]
    options: dict[str, Any] = {"norm": draw(st.sampled_from(NORMS))}
    ndim = len(shape)
    # Sometimes out of range.
    lengths, dims = st.integers(1, 9), st.integers(-ndim, ndim - 1)
    if draw(st.integers(0, 9)) == 0:
        lengths, dims = st.integers(-2, 3), st.integers(-ndim - 1, ndim)
    if name in LINES:
        options |= draw(st.fixed_dictionaries({}, optional={"n": lengths, "dim": dims}))
    else:
        count = draw(st.integers(0, ndim))
        several = {
            "s": st.lists(lengths | st.just(-1), min_size=count, max_size=count),
            "dim": st.lists(dims, min_size=count, max_size=count),
        }
        options |= draw(st.fixed_dictionaries({}, optional=several))
    return name, _random(shape, draw(st.sampled_from(dtypes))), options


@given(_calls())
def test_same_values_gradients_and_errors(call: tuple[str, Array, dict[str, Any]]) -> None:
    name, array, options = call
    x, mine = _call(offgrad, name, array, options)
    y, theirs = _call(torch, name, array, options)
    if isinstance(theirs, Exception):
        assert isinstance(mine, type(theirs)), (mine, theirs)
        return
    assert not isinstance(mine, Exception), mine
    _compare(mine, theirs, "result")
    assert mine.requires_grad == theirs.requires_grad
    if not theirs.requires_grad:
        return
    assert mine.grad_fn.name().replace("Physical", "") == theirs.grad_fn.name()
    start = _random(mine.shape, mine.dtype, 1)
    a = offgrad.tensor(start, requires_grad=True)
    b = torch.from_numpy(start).requires_grad_()
    first: Any
    (first,) = offgrad.autograd.grad(mine, x, a, create_graph=True)
    (want,) = torch.autograd.grad(theirs, y, b, create_graph=True)
    _compare(first, want, "gradient")
    again = _random(array.shape, array.dtype, 2)
    (second,) = offgrad.autograd.grad(first, a, offgrad.tensor(again))
    (want,) = torch.autograd.grad(want, b, torch.from_numpy(again))
    _compare(second, want, "gradient of the gradient")


@pytest.mark.parametrize("name", LINES + GRIDS)
def test_integers_become_the_default_dtype(name: str) -> None:
    before = offgrad.get_default_dtype()
    try:
        for dtype in ("float64", "float32", "float16"):
            offgrad.set_default_dtype(getattr(offgrad, dtype))
            torch.set_default_dtype(getattr(torch, dtype))
            _, theirs = _call(torch, name, np.ones((3, 4), np.int32), {})
            _, mine = _call(offgrad, name, np.ones((3, 4), np.int32), {})
            if isinstance(theirs, Exception):
                assert isinstance(mine, type(theirs))
            else:
                _compare(mine, theirs, dtype)
    finally:
        offgrad.set_default_dtype(before)
        torch.set_default_dtype(torch.float32)


def _path(node: Any) -> list[str]:
    """Return the names of the nodes from the result back to the input."""
    names = []
    while node is not None:
        names.append(node.name().rpartition("::")[2].replace("Physical", ""))
        node = node.next_functions[0][0] if node.next_functions else None
    return names


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float64") for name in LINES + GRIDS]
    + [(name, "complex128") for name in LINES + GRIDS if name not in REAL],
)
def test_same_graph(name: str, dtype: str) -> None:
    for lengths in (None, (3, 5), (5, 3), (6, 9)):
        options: dict[str, Any] = {}
        if lengths is not None:
            options = {"n": lengths[0]} if name in LINES else {"s": lengths}
        _, mine = _call(offgrad, name, _random((4, 6), dtype), options)
        _, theirs = _call(torch, name, _random((4, 6), dtype), options)
        want = _path(theirs.grad_fn)
        if name in ("hfft2", "hfftn"):
            # Here one operation transforms all dimensions.
            want.remove("FftC2CBackward0")
        assert _path(mine.grad_fn) == want


def test_same_names() -> None:
    # PyTorch leaves some out of its __all__, and has its own Tensor in it.
    theirs = {each for each in dir(torch.fft) if "fft" in each and not each.startswith("_")}
    assert set(fft.__all__) == theirs
    for name in theirs - {"fftfreq", "rfftfreq"}:
        signature = getattr(torch.fft, name).__doc__.strip().splitlines()[0]
        for parameter in inspect.signature(getattr(fft, name)).parameters:
            assert parameter in signature


ERRORS: dict[str, Any] = {
    "n float": lambda m, f, x: f(x, 2.0),
    "n bool": lambda m, f, x: f(x, True),
    "n text": lambda m, f, x: f(x, "3"),
    "n zero": lambda m, f, x: f(x, 0),
    "n negative": lambda m, f, x: f(x, -1),
    "dim float": lambda m, f, x: f(x, dim=1.0),
    "dim bool": lambda m, f, x: f(x, dim=True),
    "dim range": lambda m, f, x: f(x, dim=2),
    "dim negative range": lambda m, f, x: f(x, dim=-3),
    "norm": lambda m, f, x: f(x, norm="x"),
    "norm empty": lambda m, f, x: f(x, norm=""),
    "norm number": lambda m, f, x: f(x, norm=1),
    "0-dim": lambda m, f, x: f(m.tensor(1.0)),
    "0-dim and dim": lambda m, f, x: f(m.tensor(1.0), dim=0),
    "length 0": lambda m, f, x: f(m.zeros(2, 0)),
    "vector of length 0": lambda m, f, x: f(m.zeros(0)),
    "half": lambda m, f, x: f(m.ones(2, 2, dtype=m.float16)),
    "bfloat16": lambda m, f, x: f(m.ones(2, 2, dtype=m.bfloat16)),
    "complex": lambda m, f, x: f(m.ones(2, 2, dtype=m.complex64)),
    "one element": lambda m, f, x: f(m.ones(2, 1)),
    "list": lambda m, f, x: f([1.0, 2.0]),
    "number": lambda m, f, x: f(1.0),
    "None": lambda m, f, x: f(None),
    "array": lambda m, f, x: f(np.ones(2)),
    "too many": lambda m, f, x: f(x, None, -1, None, None),
    "integer of NumPy": lambda m, f, x: f(x, np.int64(3)),
    "NumPy dim": lambda m, f, x: f(x, dim=np.int64(0)),
    "tensor as n": lambda m, f, x: f(x, m.tensor(3)),
}
LINE_ERRORS: dict[str, Any] = {
    "n tuple": lambda m, f, x: f(x, (3,)),
    "dim tuple": lambda m, f, x: f(x, dim=(0,)),
    "dim None": lambda m, f, x: f(x, dim=None),
}
GRID_ERRORS: dict[str, Any] = {
    "s int": lambda m, f, x: f(x, 3),
    "s of one": lambda m, f, x: f(x, (3,)),
    "s of three": lambda m, f, x: f(x, (3, 3, 3)),
    "s of none": lambda m, f, x: f(x, ()),
    "s floats": lambda m, f, x: f(x, (3.0, 3.0)),
    "s None inside": lambda m, f, x: f(x, (None, 3)),
    "s text": lambda m, f, x: f(x, "ab"),
    "s array": lambda m, f, x: f(x, np.array([3, 3])),
    "s tensor inside": lambda m, f, x: f(x, (m.tensor(3), 3)),
    "s zero": lambda m, f, x: f(x, (0, 3)),
    "s below -1": lambda m, f, x: f(x, (3, -2)),
    "s default": lambda m, f, x: f(x, (-1, -1)),
    "dim int": lambda m, f, x: f(x, dim=1),
    "dim int and s": lambda m, f, x: f(x, (3,), 1),
    "dim int and s int": lambda m, f, x: f(x, 3, 1),
    "dim None": lambda m, f, x: f(x, dim=None),
    "dim None and s": lambda m, f, x: f(x, (3, 3), None),
    "dim None and s of three": lambda m, f, x: f(x, (3, 3, 3), None),
    "dim none": lambda m, f, x: f(x, dim=()),
    "dim none of integers": lambda m, f, x: f(m.ones(2, 2, dtype=m.int64), dim=()),
    "dim none, s none": lambda m, f, x: f(x, (), ()),
    "dim twice": lambda m, f, x: f(x, dim=(0, 0)),
    "dim twice negative": lambda m, f, x: f(x, dim=(-1, 1)),
    "dim and s differ": lambda m, f, x: f(x, (3, 3), (0,)),
    "dim and s differ again": lambda m, f, x: f(x, (3,), (0, 1)),
    "s none and dim": lambda m, f, x: f(x, (), (0,)),
    "vector": lambda m, f, x: f(m.ones(3)),
    "0-dim, dim none": lambda m, f, x: f(m.tensor(1.0), dim=()),
    "0-dim and s": lambda m, f, x: f(m.tensor(1.0), (1,)),
    "length 0 in front": lambda m, f, x: f(m.zeros(0, 3)),
    "length 0 padded": lambda m, f, x: f(m.zeros(2, 0), (2, 4)),
}
SHIFT_ERRORS: dict[str, Any] = {
    "dim range": lambda m, f, x: f(x, 2),
    "dim negative range": lambda m, f, x: f(x, -3),
    "dim none": lambda m, f, x: f(x, ()),
    "dim float": lambda m, f, x: f(x, 1.0),
    "0-dim": lambda m, f, x: f(m.tensor(1.0)),
    "0-dim and dim": lambda m, f, x: f(m.tensor(1.0), 0),
    "list": lambda m, f, x: f([1]),
    "bool": lambda m, f, x: f(m.tensor([True, False, False])),
    "empty": lambda m, f, x: f(m.zeros(0, 3)),
}
FREQUENCY_ERRORS: dict[str, Any] = {
    "n negative": lambda m, f, x: f(-5),
    "n float": lambda m, f, x: f(5.0),
    "n bool": lambda m, f, x: f(True),
    "n None": lambda m, f, x: f(None),
    "n zero": lambda m, f, x: f(0),
    "d complex": lambda m, f, x: f(5, 1j),
    "d text": lambda m, f, x: f(5, "a"),
    "d None": lambda m, f, x: f(5, None),
    "d zero": lambda m, f, x: f(5, 0.0),
    "d of NumPy": lambda m, f, x: f(5, np.float64(2)),
    "d tensor": lambda m, f, x: f(5, m.tensor(2.0)),
    "dtype int": lambda m, f, x: f(5, dtype=m.int64),
    "dtype bool": lambda m, f, x: f(5, dtype=m.bool),
    "dtype complex": lambda m, f, x: f(5, dtype=m.complex64),
    "device": lambda m, f, x: f(5, device="nowhere"),
}
CASES = {
    **dict.fromkeys(LINES, ERRORS | LINE_ERRORS),
    **dict.fromkeys(GRIDS, ERRORS | GRID_ERRORS),
    **dict.fromkeys(["fftshift", "ifftshift"], SHIFT_ERRORS),
    **dict.fromkeys(["fftfreq", "rfftfreq"], FREQUENCY_ERRORS),
}


@pytest.mark.parametrize("name", CASES)
def test_same_class_of_error_or_the_same_value(name: str) -> None:
    for label, case in CASES[name].items():
        outcomes: list[Any] = []
        for m in (offgrad, torch):
            try:
                outcomes.append(case(m, getattr(m.fft, name), m.ones(4, 6)))
            except Exception as error:
                outcomes.append(error.with_traceback(None))
        mine, theirs = outcomes
        if isinstance(theirs, Exception):
            kind = RuntimeError if isinstance(theirs, RuntimeError) else type(theirs)
            assert isinstance(mine, kind), (label, mine, theirs)
            assert len(str(mine)) > 15, f"{label}: an error says what was wrong"
        else:
            assert not isinstance(mine, Exception), (label, mine)
            _compare(mine, theirs, label)


@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_frequencies_to_the_bit(name: str, dtype: str) -> None:
    for n in range(1, 40):
        for d in (1.0, 0.1, 3, -0.5, 1e-3):
            mine = getattr(fft, name)(n, d, dtype=getattr(offgrad, dtype))
            theirs = getattr(torch.fft, name)(n, d, dtype=getattr(torch, dtype))
            assert str(theirs.dtype) == str(mine.dtype)
            assert mine.tolist() == theirs.tolist(), f"{n} {d}"
