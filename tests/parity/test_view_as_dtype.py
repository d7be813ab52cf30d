"""`view(dtype)`: the same bytes as elements of another dtype."""

from typing import Any

import pytest

import offgrad


@pytest.mark.parametrize("dtype", ["int32", "int16", "uint8", "float64", "complex64", "float32"])
def test_the_bytes_as_another_dtype(lib: Any, dtype: str) -> None:
    x = lib.arange(8.0).view(2, 4)
    y = x.view(getattr(lib, dtype))
    assert y.dtype is getattr(lib, dtype)
    assert y.numpy().tobytes() == x.numpy().tobytes()
    assert y.data_ptr() == x.data_ptr()
    assert not y._is_view()
    assert lib.equal(x.view(dtype=getattr(lib, dtype)), y)


def test_bfloat16_as_integers(lib: Any) -> None:
    assert lib.tensor([1.0, -2.0]).bfloat16().view(lib.int16).tolist() == [16256, -16384]
    assert lib.tensor([16256], dtype=lib.int16).view(lib.bfloat16).item() == 1


def test_strides_offsets_and_empty_tensors(lib: Any) -> None:
    x = lib.arange(16.0).view(2, 8)[:, 2:6]
    assert x.view(lib.float64).stride() == (4, 1)
    assert x.view(lib.float64).storage_offset() == 1
    assert x.t().view(lib.int32).stride() == (1, 8)
    assert lib.zeros(0, 4).view(lib.float64).shape == (0, 2)
    assert lib.zeros(4, 0).view(lib.int8).shape == (4, 0)


def test_a_change_reaches_the_tensor_and_counts_as_one(lib: Any) -> None:
    x = lib.ones(4)
    x.view(lib.int32)[0] = 0
    assert x.tolist() == [0, 1, 1, 1]
    assert x._version == 1


def test_the_result_is_outside_the_graph(lib: Any) -> None:
    x = lib.ones(4, requires_grad=True)
    assert not (x * 2).view(lib.float32).requires_grad
    assert not x.view(lib.int32).requires_grad


def test_a_change_through_it_of_a_saved_tensor_raises(lib: Any) -> None:
    y = lib.ones(4, requires_grad=True) * 2
    loss = (y * y).sum()
    y.view(lib.int32).zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_does_not_fit_raises(lib: Any) -> None:
    for x, dtype, words in (
        (lib.ones(3), "float64", r"self.size\(-1\) must be divisible by 2"),
        (lib.ones(()), "uint8", r"self.dim\(\) cannot be 0"),
        (lib.ones(4, 2).t(), "uint8", r"self.stride\(-1\) must be 1"),
        (lib.ones(4)[1:3], "float64", r"self.storage_offset\(\) must be divisible by 2"),
        (lib.ones(2, 3)[:, :2], "float64", r"self.stride\(0\) must be divisible by 2"),
    ):
        with pytest.raises(RuntimeError, match=words):
            x.view(getattr(lib, dtype))
    with pytest.raises(TypeError):
        lib.ones(4).view(2, 2, dtype=lib.int32)


def test_saved_bytes_of_two_dtypes_stay_apart() -> None:
    """A store that holds shared bytes once gives each saved tensor its own dtype back."""
    gradients = []
    for policy in ("keep", "disk"):
        x = offgrad.arange(1.0, 20001, requires_grad=True)
        with offgrad.offload(policy):
            y = x * 2
            loss = (y * y).sum() + (x * y.view(offgrad.int32)).sum()
        loss.backward()
        assert x.grad is not None
        gradients.append(x.grad)
    assert offgrad.equal(*gradients)
    expected = 8 * x.detach() + (x.detach() * 2).view(offgrad.int32)
    assert offgrad.allclose(gradients[0], expected)
