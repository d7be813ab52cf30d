"""How much faster are the compiled kernels than NumPy, and than torch's eager kernels?

    pytest benchmarks/bench_kernels.py --benchmark-group-by=group --benchmark-columns=median,iqr

Each group is one kernel. Its implementations run one after the other in one process, on
OFFGRAD_NUM_THREADS threads (torch too); torch is skipped where it is not installed. No time is
asserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from offgrad import kernels

Call = Callable[[], Any]
Make = Callable[[], tuple[Call, Callable[[Any], Call]]]

_rng = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return _rng.normal(size=shape).astype(np.float32)


def _gelu() -> tuple[Call, Callable[[Any], Call]]:
    x = _normal(4096, 3072)
    out = np.empty_like(x)

    def with_torch(torch: Any) -> Call:
        t = torch.from_numpy(x)
        return lambda: torch.nn.functional.gelu(t)

    return lambda: kernels.gelu(x, out), with_torch


def _gelu_backward() -> tuple[Call, Callable[[Any], Call]]:
    grad, x = _normal(4096, 3072), _normal(4096, 3072)
    out = np.empty_like(x)

    def with_torch(torch: Any) -> Call:
        g, t = torch.from_numpy(grad), torch.from_numpy(x)
        return lambda: torch.ops.aten.gelu_backward(g, t)

    return lambda: kernels.gelu_backward(grad, x, out), with_torch


def _softmax() -> tuple[Call, Callable[[Any], Call]]:
    x = _normal(8192, 1024)
    out = np.empty_like(x)

    def with_torch(torch: Any) -> Call:
        t = torch.from_numpy(x)
        return lambda: torch.softmax(t, -1)

    return lambda: kernels.softmax(x, out), with_torch


def _softmax_backward() -> tuple[Call, Callable[[Any], Call]]:
    grad, result = _normal(8192, 1024), _normal(8192, 1024)
    out = np.empty_like(grad)

    def with_torch(torch: Any) -> Call:
        g, y = torch.from_numpy(grad), torch.from_numpy(result)
        return lambda: torch.ops.aten._softmax_backward_data(g, y, -1, torch.float32)

    return lambda: kernels.softmax_backward(grad, result, out), with_torch


def _cross_entropy() -> tuple[Call, Callable[[Any], Call]]:
    logits, target = _normal(1024, 50257), _rng.integers(0, 50257, 1024)
    losses, lse = np.empty(1024, np.float32), np.empty(1024, np.float32)

    def with_torch(torch: Any) -> Call:
        x, t = torch.from_numpy(logits), torch.from_numpy(target)
        return lambda: torch.nn.functional.cross_entropy(x, t)

    return lambda: kernels.cross_entropy(logits, target, losses, lse), with_torch


def _layer_norm() -> tuple[Call, Callable[[Any], Call]]:
    x, weight, bias = _normal(4096, 768), _normal(768), _normal(768)
    out, mean, rstd = np.empty_like(x), np.empty(4096, np.float32), np.empty(4096, np.float32)

    def with_torch(torch: Any) -> Call:
        t, w, b = (torch.from_numpy(a) for a in (x, weight, bias))
        return lambda: torch.nn.functional.layer_norm(t, (768,), w, b)

    return lambda: kernels.layer_norm(x, weight, bias, 1e-5, out, mean, rstd), with_torch


def _layer_norm_backward() -> tuple[Call, Callable[[Any], Call]]:
    x, grad, weight = _normal(4096, 768), _normal(4096, 768), _normal(768)
    out, mean, rstd = np.empty_like(x), np.empty(4096, np.float32), np.empty(4096, np.float32)
    kernels.layer_norm(x, weight, None, 1e-5, out, mean, rstd)
    dweight, dbias = np.empty_like(weight), np.empty_like(weight)

    def with_torch(torch: Any) -> Call:
        g, t, w = (torch.from_numpy(a) for a in (grad, x, weight))
        m, r = torch.from_numpy(mean)[:, None], torch.from_numpy(rstd)[:, None]
        backward = torch.ops.aten.native_layer_norm_backward
        return lambda: backward(g, t, [768], m, r, w, w, [True] * 3)

    return (
        lambda: kernels.layer_norm_backward(grad, x, weight, mean, rstd, out, dweight, dbias),
        with_torch,
    )


def _dropout() -> tuple[Call, Callable[[Any], Call]]:
    x = _normal(4096, 768)
    out = np.empty_like(x)

    def with_torch(torch: Any) -> Call:
        t = torch.from_numpy(x)
        return lambda: torch.nn.functional.dropout(t, 0.1)

    return lambda: kernels.dropout(x, out, 0.1, 1), with_torch


def _adamw() -> tuple[Call, Callable[[Any], Call]]:
    state = [_normal(8_000_000) ** 2 for _ in range(4)]
    param, grad, mean, square = state

    def with_torch(torch: Any) -> Call:
        weight = torch.from_numpy(param.copy()).requires_grad_()
        weight.grad = torch.from_numpy(grad)
        return torch.optim.AdamW([weight], fused=True).step  # type: ignore[no-any-return]

    return (
        lambda: kernels.adamw_step(
            param, grad, mean, square, 1e-3, 0.9, 0.999, 1e-8, weight_decay=0.01, step=10
        ),
        with_torch,
    )


def _attention_arrays() -> list[Any]:
    return [_normal(4, 12, 1024, 64) for _ in range(4)]


def _attention() -> tuple[Call, Callable[[Any], Call]]:
    q, k, v, out = _attention_arrays()
    lse = np.empty(q.shape[:3], np.float32)

    def with_torch(torch: Any) -> Call:
        tensors = [torch.from_numpy(a) for a in (q, k, v)]
        function = torch.nn.functional.scaled_dot_product_attention
        return lambda: function(*tensors, is_causal=True)

    return lambda: kernels.attention(q, k, v, out, lse, 0.125, True), with_torch


def _attention_backward() -> tuple[Call, Callable[[Any], Call]]:
    q, k, v, grad = _attention_arrays()
    out, dq, dk, dv = (np.empty_like(q) for _ in range(4))
    lse = np.empty(q.shape[:3], np.float32)
    kernels.attention(q, k, v, out, lse, 0.125, True)

    def with_torch(torch: Any) -> Call:
        tensors = [torch.from_numpy(a).requires_grad_() for a in (q, k, v)]
        result = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
        g = torch.from_numpy(grad)
        return lambda: torch.autograd.grad(result, tensors, g, retain_graph=True)

    return (
        lambda: kernels.attention_backward(
            grad, q, k, v, out, lse, dq, dk, dv, scale=0.125, causal=True
        ),
        with_torch,
    )


def _embedding_backward() -> tuple[Call, Callable[[Any], Call]]:
    grad, index = _normal(4096, 768), _rng.integers(0, 256, 4096)
    out = np.empty((256, 768), np.float32)

    def with_torch(torch: Any) -> Call:
        g, i = torch.from_numpy(grad), torch.from_numpy(index)
        return lambda: torch.ops.aten.embedding_dense_backward(g, i, 256, -1, False)

    return lambda: kernels.embedding_backward(grad, index, out), with_torch


def _sum_rows() -> tuple[Call, Callable[[Any], Call]]:
    x, out = _normal(4096, 3072), np.empty(3072, np.float32)

    def with_torch(torch: Any) -> Call:
        t = torch.from_numpy(x)
        return lambda: t.sum(0)

    return lambda: kernels.sum_rows(x, out), with_torch


KERNELS: dict[str, Make] = {
    "gelu 4096x3072": _gelu,
    "gelu backward 4096x3072": _gelu_backward,
    "softmax 8192x1024": _softmax,
    "softmax backward 8192x1024": _softmax_backward,
    "cross-entropy 1024x50257": _cross_entropy,
    "layer norm 4096x768": _layer_norm,
    "layer norm backward 4096x768": _layer_norm_backward,
    "dropout 4096x768": _dropout,
    "adamw 8M": _adamw,
    "attention 4x12 T=1024 d=64 causal": _attention,
    "attention backward 4x12 T=1024 d=64 causal": _attention_backward,
    "embedding backward 4096x768 into 256": _embedding_backward,
    "sum of rows 4096x3072": _sum_rows,
}


@pytest.fixture(autouse=True)
def _backend() -> Iterator[None]:
    before = kernels.backend()
    yield
    kernels.set_backend(before)


@pytest.mark.parametrize("implementation", ["numpy", "numba", "torch"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernel(name: str, implementation: str, benchmark: Any) -> None:
    benchmark.group = name
    call, with_torch = KERNELS[name]()
    if implementation == "torch":
        torch = pytest.importorskip("torch")
        torch.set_num_threads(kernels.get_num_threads())
        call = with_torch(torch)
    else:
        kernels.set_backend(implementation)
    benchmark.pedantic(call, rounds=9, warmup_rounds=2)
