"""`assert_close` raises where PyTorch's does, with what people read in its messages."""

from typing import Any

import numpy as np
import pytest

import offgrad
import offgrad.testing
from offgrad.testing import assert_close, make_tensor

CALLS = """
o(3), o(3) + 1e-3
o(3), o(3) + 1e-6
o(3), o(2)
o(3), o(3).double()
o(3), o(3).double(), check_dtype=False
[1, 2.0], [1, 2.1]
[1, 2.0], (1, 2.0)
{"a": 1}, {"b": 1}
{"a": o(2)}, {"a": o(2) * 2}
[1], [1, 2]
None, None
None, 1
"a", "a"
o(2), [1.0, 1.0]
np.ones(2), np.ones(2)
np.ones(2), o(2)
nan, nan
nan, nan, equal_nan=True
o(2) * nan, o(2) * nan
o(2) * nan, o(2) * nan, equal_nan=True
o(2), o(2), rtol=1
o(2, 2), o(2, 2).t(), check_stride=True
t.tensor(1), t.tensor(2)
t.tensor([1, 5]), t.tensor([2, 5])
1, 1.0
1, 1.0, check_dtype=False
1, 2
1.0, 1.1, msg="hey"
1.0, 1.1, msg=lambda text: "x" + text
t.tensor([True]), t.tensor([False])
o(2), o(2) * 3, rtol=0, atol=5
o(2), t.tensor([1, float("inf")])
o(2, dtype=t.complex64), o(2, dtype=t.complex64) * 1j
o(2), o(2, requires_grad=True)
o(1, 2), o(2)
o(0), o(0)
t.tensor([2**62]), t.tensor([2**62 + 1])
"""


@pytest.mark.parametrize("call", CALLS.strip().splitlines())
def test_it_raises_as_pytorch(call: str) -> None:
    torch = pytest.importorskip("torch")
    found: list[Any] = []
    for library in (torch, offgrad):
        names = {"t": library, "o": library.ones, "np": np, "nan": float("nan")}
        compare: Any = library.testing.assert_close
        try:
            eval(f"compare({call})", names | {"compare": compare})
            found.append((None, ""))
        except Exception as error:
            first = str(error).split("\n")[0].replace("torch.", "")
            is_same = isinstance(error, AssertionError) and "attribute" not in first
            found.append((type(error), first if is_same else ""))
    assert found[0] == found[1]


def test_messages_say_where() -> None:
    with pytest.raises(
        AssertionError, match=r"1 / 4 \(25\.0%\)[^$]*difference: 2\.0 at index \(1, 0"
    ):
        assert_close(offgrad.tensor([[1.0, 1], [3, 1]]), offgrad.ones(2, 2))
    with pytest.raises(AssertionError, match=r"item \['a'\]\[1\]"):
        assert_close({"a": [1, 2]}, {"a": [1, 3]})
    offgrad.testing.assert_allclose(offgrad.ones(2), offgrad.ones(2).double())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8", "bool", "complex64"])
def test_random_tensors(dtype: str) -> None:
    kind = getattr(offgrad, dtype)
    x = make_tensor((3, 4), dtype=kind, device="cpu", noncontiguous=True)
    assert x.shape == (3, 4)
    assert x.dtype == kind
    assert not x.is_contiguous()
    y = make_tensor(2, 3, dtype=kind, low=0, high=1, exclude_zero=dtype != "bool")
    assert y.shape == (2, 3)
    assert dtype == "bool" or y.count_nonzero() == 6
    if kind.is_floating_point:
        assert make_tensor(2, dtype=kind, requires_grad=True).requires_grad
