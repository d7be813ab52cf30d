"""Kernels for meta arrays: they write nothing, and return meta arrays where kernels return arrays.

They replace the kernels in the package's namespace while a thread computes shapes only; calls from
other threads reach the real ones.

For a thread with a meter (`offgrad.memory.meter`), kernels that allocate tensor memory run as they
stand, without their loops, so that it counts this memory, too.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np

from offgrad import memory
from offgrad.kernels import _conv, _halves, _jit, _parallel, _products, _recurrent
from offgrad.kernels._arrays import is_half
from offgrad.kernels._halves import as_float
from offgrad.kernels._losses import PairLoss
from offgrad.memory import meta
from offgrad.memory.meta import Array, meta_empty
from offgrad.memory.meta_functions import reduced_shape

# They read no arrays, or only geometry.
_AS_THEY_ARE = {
    "allow_split_products", "backend", "code_dtype", "get_num_threads", "has_scans", "is_half",
    "is_large", "nadam_momentum", "set_backend", "set_num_threads", "single_threaded_blas",
}  # fmt: skip


class _Loss(PairLoss):
    """A loss without values."""

    def total(self, x: Array, target: Array) -> float:
        return 0.0

    def values(self, x: Array, target: Array, out: Array) -> None:
        pass

    def slopes(self, x: Array, target: Array, scale: Any, out: Array) -> None:
        pass


def _loss(*_: Any) -> PairLoss:
    return _Loss()


def _sum_axes(
    x: Array, axes: tuple[int, ...], keepdims: bool = False, out: Array | None = None
) -> Array:
    return meta_empty(reduced_shape(x, axes, keepdims), x.dtype) if out is None else out


def _columns(x: Array, kernel: tuple[int, ...], places: tuple[int, ...], steps: Any) -> Array:
    return meta_empty((*x.shape[:2], *kernel, *places), x.dtype)


def _ctc_states(targets: Any, n: int) -> tuple[Array, Array]:
    raise NotImplementedError("targets without values")


def _sorted_indices(x: Array, descending: bool, first: int = 0, last: int | None = None) -> Array:
    count = (x.shape[-1] if last is None else last) - first
    return meta_empty((*x.shape[:-1], count), np.int64)


_RULES: dict[str, Callable[..., Any]] = {
    "are_probabilities": lambda x: True,
    "are_within": lambda index, low, high: True,
    "arg_extreme": lambda find, x: meta_empty(x.shape[:-1], np.int64),
    "binary_cross_entropy": _loss,
    "binary_cross_entropy_with_logits": _loss,
    "columns": _columns,
    "cross_entropy_total_weight": lambda *_: 1.0,
    "ctc_states": _ctc_states,
    "dropout_mask": lambda shape, *_: meta_empty(shape, np.bool_),
    "huber": _loss,
    "mse": _loss,
    "places": lambda codes, *_: meta_empty(codes.shape, np.int64),
    "scratch": lambda number, size, dtype: meta_empty((size,), dtype),
    "smooth_l1": _loss,
    "soft_margin": _loss,
    "sorted_indices": _sorted_indices,
    "sum_axes": _sum_axes,
    "sum_of_squares": lambda parts: 1.0,
}


# They allocate tensor memory.
_WITHOUT_LOOPS = {
    "convolve", "convolve_transposed", "convolve_weight", "gru", "gru_backward", "lstm",
    "lstm_backward", "rnn", "rnn_backward",
}  # fmt: skip


def _adafactor(param: Array, grad: Array, row_var: Any, column_var: Any, variance: Any) -> None:
    estimate = memory.empty(grad.shape, as_float(grad).dtype)
    if variance is not None:
        memory.copy(estimate)


def _muon(param: Array, grad: Array, nesterov: bool) -> None:
    mean = memory.copy(as_float(grad))
    change = memory.copy(mean) if nesterov else None
    least, most = sorted(grad.shape)
    sizes = ((least, most), (least, most), (least, least), (least, least))
    matrices = [memory.empty(each, np.float32) for each in sizes]
    del matrices, change


_SCRATCH: dict[str, Callable[..., Any]] = {
    "adafactor_step": lambda *args: _adafactor(*args[:5]),
    "muon_step": lambda *args: _muon(args[0], args[1], args[7]),
}


def _nothing(*_: Any, **__: Any) -> None:
    pass


_CONVERTING: dict[str, Callable[..., bool] | None] = {
    "add_at": None,
    "matmul": lambda a, b, out, *_: _products.is_converted(a, b, out),
    "scatter_add": None,
    "scatter_reduce": None,
    "sum_axes": None,
}
"""Kernels that convert 16-bit floats themselves, and when; None for always."""


def _with_copies(
    rule: Callable[..., Any], converts: Callable[..., bool] | None
) -> Callable[..., Any]:
    """Return the rule of a kernel that gets 16-bit floats as float32."""

    def run(*args: Any, **kwargs: Any) -> Any:
        arrays = [each for each in (*args, *kwargs.values()) if isinstance(each, np.ndarray)]
        halves = [each for each in arrays if is_half(each.dtype)]
        if halves and converts is not None and not converts(*args, **kwargs):
            halves = []
        copies = [memory.empty(each.shape, np.float32) for each in halves]
        result = rule(*args, **kwargs)
        del copies
        return result

    return run


def _silent(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    rule: Any = _RULES.get(name, _nothing)
    metered_rule: Any = kernel if name in _WITHOUT_LOOPS else _SCRATCH.get(name, rule)
    if name in _CONVERTING or name in _halves.converting - _WITHOUT_LOOPS:
        metered_rule = _with_copies(metered_rule, _CONVERTING.get(name))

    def run(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        if thread in meta.shape_only:
            meter = meta.meters.get(thread)
            if meter is None:
                return rule(*args, **kwargs)
            meter.computed(name, (*args, *kwargs.values()))
            return metered_rule(*args, **kwargs)
        return kernel(*args, **kwargs)

    return run


def replacements(namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the kernels of a namespace as they are while a thread computes shapes only."""
    return {
        name: _silent(name, each)
        for name, each in namespace.items()
        if isinstance(each, FunctionType) and not name.startswith("_") and name not in _AS_THEY_ARE
    }


# Kernels without their loops


class _Ranges(threading.local):
    """The ranges of a `parallel_for` that other threads would compute at the same time."""

    def __init__(self) -> None:
        self.next: Iterator[Callable[[], None]] = iter(())


_ranges = _Ranges()


def _in_turn(body: Callable[[int, int], None], count: int, step: int) -> bool:
    """Run `body` for as many ranges as there are threads, if this thread has a meter.

    Each range begins inside the first loop of the one before, so that the memory that their threads
    take exists at the same time.
    """
    if threading.get_ident() not in meta.meters:
        return False
    starts = range(0, count, step)[: _parallel.get_num_threads()]
    outer, _ranges.next = _ranges.next, iter(())
    try:
        ranges = [lambda at=at: body(at, min(at + step, count)) for at in starts]
        _ranges.next = iter(ranges)
        _begin_next()
    finally:
        _ranges.next = outer
    return True


def _begin_next() -> None:
    run = next(_ranges.next, None)
    if run is not None:
        run()


_run_loop = _jit.Kernel.__call__
_blocks = 0


def _call_loop(loop: Any, *args: Any, **kwargs: Any) -> Any:
    if threading.get_ident() in meta.meters:
        _begin_next()
        return None
    return _run_loop(loop, *args, **kwargs)


def _without_work(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return None if threading.get_ident() in meta.meters else function(*args, **kwargs)

    return run


# The kernels within kernels: products, and references, which allocate no tensor memory.
_INNER = {
    (module, name): each
    for module in (_conv, _recurrent)
    for name, each in vars(module).items()
    if name.endswith("_numpy") or (name == "matmul" and module is _recurrent)
}
_WITHOUT_WORK = {key: _without_work(each) for key, each in _INNER.items()}


@contextmanager
def loops_without_work() -> Iterator[None]:
    """Let loops do nothing in threads with a meter."""
    global _blocks
    with meta.lock:
        _blocks += 1
        if _blocks == 1:
            _jit.Kernel.__call__ = _call_loop  # type: ignore[assignment, method-assign]
            _parallel.instead.append(_in_turn)
            for (module, name), each in _WITHOUT_WORK.items():
                setattr(module, name, each)
    try:
        yield
    finally:
        with meta.lock:
            _blocks -= 1
            if not _blocks:
                _jit.Kernel.__call__ = _run_loop  # type: ignore[method-assign]
                _parallel.instead.clear()
                for (module, name), each in _INNER.items():
                    setattr(module, name, each)
