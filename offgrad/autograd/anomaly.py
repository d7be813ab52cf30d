"""Anomaly mode: traces errors and NaN in backward to the line of forward that caused them."""

import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from offgrad.autograd.node import Grads, Node

_PACKAGE = sys.modules["offgrad"].__path__[0]


class _State:
    """One state per process, as in PyTorch: backward may run in another thread than forward."""

    enabled = False
    check_nan = True


class _Running(threading.local):
    node: "Node | None" = None


state = _State()
_running = _Running()


def is_anomaly_enabled() -> bool:
    """Return whether anomaly mode is on."""
    return state.enabled


def is_anomaly_check_nan_enabled() -> bool:
    """Return whether anomaly mode, if on, checks for NaN."""
    return state.check_nan


class set_detect_anomaly:
    """Set anomaly mode to `mode` at once; as a context manager, restore it at the end."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        if not isinstance(mode, bool) or not isinstance(check_nan, bool):
            raise TypeError(f"set_detect_anomaly takes bools, got {mode!r} and {check_nan!r}")
        self._previous = state.enabled, state.check_nan
        state.enabled, state.check_nan = mode, check_nan

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state.enabled, state.check_nan = self._previous


class detect_anomaly:
    """Record the line that runs each operation inside the block; report it when the backward of the
    operation fails or, with `check_nan`, returns NaN.

    Run both forward and backward in the block. For debugging only: it costs time and memory.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan
        self._entered: list[set_detect_anomaly] = []

    def __enter__(self) -> None:
        self._entered.append(set_detect_anomaly(True, self._check_nan))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered.pop().__exit__(kind, error, traceback)


def record_line(node: "Node") -> None:
    """Store in the metadata of the new `node` the stack and the node whose backward is running."""
    stack = traceback.StackSummary.extract(_frames(sys._getframe(1)), lookup_lines=False)
    stack.reverse()
    node.metadata["traceback_"] = stack
    node.metadata["parent_"] = _running.node


def caller() -> str:
    """Return the line outside this package that called it."""
    stack = traceback.StackSummary.extract(_frames(sys._getframe(1)), limit=1)
    return ", ".join(f"{each.filename}:{each.lineno} in {each.name}" for each in stack)


def run(node: "Node", grads: "Grads") -> "Grads":
    """Run `node`; add to an error where forward recorded the node."""
    outer, _running.node = _running.node, node
    try:
        return node.run(grads)
    except Exception as error:
        error.add_note(f"{_recorded_at(node)}\n{_forward_stacks(node)}")
        raise
    finally:
        _running.node = outer


def check(node: "Node", grads: "Grads") -> None:
    """Raise if one of the gradients `node` returned has a NaN.

    Raises:
        RuntimeError: naming the node, the gradient and the line of forward.
    """
    if not state.check_nan:
        return
    for index, grad in enumerate(grads):
        if grad is None:
            continue
        array: Any = grad._array
        if array.dtype.kind in "fcV" and np.isnan(array).any():
            error = RuntimeError(
                f"Function '{node.name()}' returned nan values in its {index}th output. "
                f"The gradient has shape {list(array.shape)}. "
                f"{_recorded_at(node)}"
            )
            error.add_note(_forward_stacks(node))
            try:
                raise error
            finally:
                del error  # its traceback holds this frame


def _frames(innermost: FrameType) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames from the innermost one outside this package outwards."""
    inside = True
    for frame, line in traceback.walk_stack(innermost):
        inside = inside and frame.f_code.co_filename.startswith(_PACKAGE)
        if not inside:
            yield frame, line


def _recorded_at(node: "Node") -> str:
    stack = node.metadata.get("traceback_")
    if not stack:
        return (
            f"The line of forward that recorded {node.name()} is unknown: run forward, too, under "
            "detect_anomaly()."
        )
    last = stack[-1]
    return (
        f"It was recorded in forward at {last.filename}:{last.lineno}, in {last.name}: {last.line}"
    )


def _forward_stacks(node: "Node | None") -> str:
    """Return the forward stack of `node` and of the nodes whose backward recorded it."""
    parts = []
    while node is not None:
        stack = node.metadata.get("traceback_")
        if stack:
            parts.append(f"Forward of {node.name()}:\n{''.join(stack.format())}")
        node = node.metadata.get("parent_")
        if node is not None:
            parts.append(f"That was the backward of {node.name()}.\n")
    return "".join(parts).rstrip()
