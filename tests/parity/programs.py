"""Random programs over a pool of tensors: the steps and their outcomes.

A program is a list of small tuples (name, first, second): the numbers choose operands from the
pool, and are an operation's parameter. The same program runs on offgrad, on torch and, where that
makes sense, on NumPy, whose arrays and views show the same numbers.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from tests.parity.conftest import builtin_class

Step = tuple[str, int, int]

# Each takes a tensor or an array and a small number, and returns a view.
VIEWS: dict[str, Callable[[Any, int], Any]] = {
    "head": lambda t, k: t[: k % 3 + 1],
    "tail": lambda t, k: t[k % 3 :],
    "step": lambda t, k: t[..., ::2],
    "select": lambda t, k: t[k % 3, ...],
    "column": lambda t, k: t[..., k % 2],
    "new axis": lambda t, k: t[None],
    "transpose": lambda t, k: swapped(t) if numpy(t) else t.transpose(0, -1),
    "flat": lambda t, k: t.reshape(-1) if numpy(t) else t.view(-1),
    "pairs": lambda t, k: t.reshape(-1, 2) if numpy(t) else t.view(-1, 2),
    "diagonal": lambda t, k: diagonal(t) if numpy(t) else t.diagonal(),
    "expand": lambda t, k: expanded(t) if numpy(t) else t.expand(2, *t.shape),
}
SEVERAL: dict[str, Callable[[Any, int], Any]] = {
    "unbind": lambda t, k: t.unbind()[k % 2],
    "split": lambda t, k: t.split(1, dim=-1)[0],
    "chunk": lambda t, k: t.chunk(2)[k % 2],
}
# Out of place: values stay of the size of one, so that derivatives compare well.
VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "sin": lambda t, o: np.sin(t) if numpy(t) else t.sin(),
    "tanh": lambda t, o: np.tanh(t) if numpy(t) else t.tanh(),
    "sigmoid": lambda t, o: 1 / (1 + np.exp(-t)) if numpy(t) else t.sigmoid(),
    "scale": lambda t, o: t * 0.75,
    "copy": lambda t, o: t.copy() if numpy(t) else t.clone(),
    "sum": lambda t, o: np.asarray(t.sum()) if numpy(t) else t.sum(),
    "sum of rows": lambda t, o: t.sum(0),
    "add": lambda t, o: (t + o) * 0.5,
    "sub": lambda t, o: t - o * 0.5,
    "mul": lambda t, o: t * o,
}
INPLACE: dict[str, Callable[[Any, Any], Any]] = {
    "mul_": lambda t, o: t.mul_(-0.75),
    "add_": lambda t, o: t.add_(0.25),
    "tanh_": lambda t, o: t.tanh_(),
    "sigmoid_": lambda t, o: t.sigmoid_(),
    "pow_": lambda t, o: t.pow_(2),
    "neg_": lambda t, o: t.neg_(),
    "add_ tensor": lambda t, o: t.add_(o, alpha=0.5),
    "sub_ tensor": lambda t, o: t.sub_(o),
    "mul_ tensor": lambda t, o: t.mul_(o),
    "copy_": lambda t, o: t.copy_(o),
    "assign": lambda t, o: assign(t, 0, o),
    "assign number": lambda t, o: assign(t, (..., -1), 0.25),
    "assign masked": lambda t, o: assign(t, t.detach() > 0.3, 0.2),
    "zero_": lambda t, o: t.zero_(),
    "fill_": lambda t, o: t.fill_(0.5),
}
INPLACE_NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    "mul_": lambda t, o: assign(t, ..., t * -0.75),
    "add_": lambda t, o: assign(t, ..., t + 0.25),
    "tanh_": lambda t, o: assign(t, ..., np.tanh(t)),
    "sigmoid_": lambda t, o: assign(t, ..., 1 / (1 + np.exp(-t))),
    "pow_": lambda t, o: assign(t, ..., t * t),
    "neg_": lambda t, o: assign(t, ..., -t),
    "add_ tensor": lambda t, o: assign(t, ..., t + 0.5 * o),
    "sub_ tensor": lambda t, o: assign(t, ..., t - o),
    "mul_ tensor": lambda t, o: assign(t, ..., t * o),
    "copy_": lambda t, o: assign(t, ..., o),
    "assign": lambda t, o: assign(t, (0, ...), o),
    "assign number": lambda t, o: assign(t, (..., -1), 0.25),
    "assign masked": lambda t, o: assign(t, t.real > 0.3, 0.2),
    "zero_": lambda t, o: assign(t, ..., 0),
    "fill_": lambda t, o: assign(t, ..., 0.5),
}
PERMISSIVE = ("zero_", "fill_", "assign", "assign number", "assign masked")
"""What torch does even to expanded memory."""

LIMIT = 1e3
"""Programs end where a value gets larger."""

SHAPE = (3, 4)
START: tuple[Step, ...] = (
    ("leaf", 0, 0),
    ("leaf", 0, 0),
    ("constant", 0, 0),
    ("mul", 0, 1),
    ("scale", 0, 0),
)
"""What every pool begins with: most of a program should be about what may change in place."""


def numpy(t: Any) -> bool:
    return isinstance(t, np.ndarray)


def swapped(t: Any) -> Any:
    return t.swapaxes(0, -1) if t.ndim else t[...]


def diagonal(t: Any) -> Any:
    size = min(t.shape[:2])
    return np.einsum("ii...->...i", t[:size, :size])  # np.diagonal may not be written to


def expanded(t: Any) -> Any:
    return np.lib.stride_tricks.as_strided(t, (2, *t.shape), (0, *t.strides))


def assign(target: Any, index: Any, value: Any) -> Any:
    target[index] = value
    return target


def numbers(serial: int, shape: tuple[int, ...] = SHAPE) -> Any:
    """Return the values of a new tensor."""
    return np.random.default_rng(serial).uniform(-0.9, 0.9, shape)


class Entry(NamedTuple):
    """A tensor of the pool, and the facts by which torch refuses overlapping memory."""

    tensor: Any
    memory: int
    """Those with the same number may share memory."""
    expanded: bool


class Run:
    """One execution of a program by one library."""

    def __init__(self, lib: Any, shape: tuple[int, ...] = SHAPE) -> None:
        self.lib = lib
        self.shape = shape
        self.entries: list[Entry] = []
        self.leaves: list[Any] = []
        self.retaining: list[Any] = []
        self.serial = 0
        """Counts the tensors made anew."""
        for step in START:
            assert self.step(step) == "done"

    def step(self, step: Step) -> str:
        """Do a step; return "done", "skipped", "refused" or the name of the class of its error.

        It is refused where an operand's history is lost: which error comes first is not said.
        """
        try:
            return self._step(*step)
        except Exception as error:
            operands = [self.entries[each % len(self.entries)].tensor for each in step[1:]]
            if any(isinstance(history(each), str) for each in operands):
                return "refused"
            return builtin_class(error).__name__

    def run(self, program: list[Step]) -> list[str]:
        """Do all steps while values stay small; return the outcome of each."""
        found: list[str] = []
        for step in program:
            if not self.small():
                break
            found.append(self.step(step))
            self.state()
        return found

    def small(self) -> bool:
        return all(np.all(np.abs(each) <= LIMIT) for each in self.values())

    def _step(self, name: str, first: int, second: int) -> str:
        if name in ("leaf", "constant"):
            tensor = self.lib.tensor(numbers(self.serial, self.shape), requires_grad=name == "leaf")
            if name == "leaf":
                self.leaves.append(tensor)
            self._add(tensor, None, False)
            return "done"
        entry = self.entries[first % len(self.entries)]
        other = self.entries[second % len(self.entries)]
        tensor, operand = entry.tensor, other.tensor
        mode = self.lib.no_grad if name.startswith("no_grad ") else nullcontext
        name = name.removeprefix("no_grad ")
        with mode():
            if name in VIEWS:
                made = VIEWS[name](tensor, second)
                self._add(made, entry.memory, entry.expanded or name == "expand")
            elif name in SEVERAL:
                self._add(SEVERAL[name](tensor, second), entry.memory, entry.expanded)
            elif name == "detach":
                self._add(tensor.detach(), entry.memory, entry.expanded)
            elif name in VALUES:
                # Results of strided tensors are laid out as each library likes: not here.
                made = VALUES[name](tensor.contiguous(), operand.contiguous())
                self._add(made, None, False)
            elif name in INPLACE:
                if entry.expanded and name in PERMISSIVE:
                    return "skipped"
                if entry.memory == other.memory:
                    # torch refuses most overlaps, and not all: another test covers them.
                    operand = operand * 1
                INPLACE[name](tensor, operand)
            else:
                self._other(name, tensor, second)
        return "done"

    def _other(self, name: str, tensor: Any, second: int) -> None:
        if name == "hook":
            scale = 0.5 + second % 3
            tensor.register_hook(lambda grad: grad * scale)
        elif name == "retain_grad":
            tensor.retain_grad()
            if not any(each is tensor for each in self.retaining):
                self.retaining.append(tensor)
        elif name == "backward":
            tensor.sum().backward(retain_graph=True)
        else:
            raise AssertionError(name)

    def _add(self, tensor: Any, memory: int | None, expanded: bool) -> None:
        self.serial += 1
        self.entries.append(Entry(tensor, self.serial if memory is None else memory, expanded))

    def state(self) -> list[Any]:
        """Return flags of each tensor; asking for the history is part of the program."""
        return [(each.tensor.requires_grad, history(each.tensor)) for each in self.entries]

    def values(self) -> list[Any]:
        return [array(each.tensor) for each in self.entries]

    def gradients(self, create_graph: bool = False) -> list[Any]:
        """Return for each tensor its gradients by the leaves, or the class of an error."""
        return [self._gradient(each.tensor, create_graph) for each in self.entries]

    def _gradient(self, tensor: Any, second: bool) -> Any:
        grad = self.lib.autograd.grad
        try:
            loss = (tensor * self.lib.tensor(weights(tensor.shape))).sum()
            found = grad(
                loss, self.leaves, retain_graph=True, create_graph=second, allow_unused=True
            )
            if second:
                loss = sum((each * each).sum() for each in found if each is not None)
                found = grad(loss, self.leaves, retain_graph=True, allow_unused=True)
        except Exception as error:
            return builtin_class(error).__name__
        return [array(each) for each in zeros_for_none(found)]

    def accumulated(self) -> tuple[list[str], list[Any]]:
        """Run backward from every tensor; return each outcome and every .grad."""
        outcomes = []
        for each in self.entries:
            try:
                loss = (each.tensor * self.lib.tensor(weights(each.tensor.shape))).sum()
                loss.backward(retain_graph=True)
            except Exception as error:
                outcomes.append(builtin_class(error).__name__)
            else:
                outcomes.append("done")
        found = zeros_for_none([each.grad for each in (*self.leaves, *self.retaining)])
        return outcomes, [array(each) for each in found]


def zeros_for_none(found: Any) -> list[Any]:
    """Zeros and no gradient say the same, and libraries differ in which they say."""
    return [np.zeros(()) if each is None else each for each in found]


def array(tensor: Any) -> Any:
    return tensor if numpy(tensor) else tensor.detach().numpy().copy()


def history(tensor: Any) -> Any:
    """Return whether a tensor has a history, or the class of the error that asking is."""
    try:
        return tensor.grad_fn is not None
    except Exception as error:
        return builtin_class(error).__name__


def weights(shape: Any) -> Any:
    size = int(np.prod(shape))
    return np.cos(np.arange(1.0, 1 + size)).reshape(tuple(shape))


def by_complex_steps(program: list[Step]) -> list[list[Any]]:
    """Return the gradient of each tensor of a program by each leaf, by NumPy alone.

    The imaginary part of f(x + ih) / h, for h so small that its square is nothing: exact to
    rounding (Squire and Trapp, 1998). Only for programs in which autograd sees every change.
    """
    step = 1e-30
    leaves = sum(name == "leaf" for name, _, _ in (*START, *program))
    found: list[list[Any]] = []
    for leaf in range(leaves):
        columns = []
        for element in np.ndindex(SHAPE):
            columns.append(
                [
                    float((value.imag * weights(value.shape)).sum()) / step
                    for value in _in_numpy(program, leaf, element, step)
                ]
            )
        found.append(columns)
    count = len(found[0][0])
    return [
        [np.array([column[entry] for column in columns]).reshape(SHAPE) for columns in found]
        for entry in range(count)
    ]


def _in_numpy(program: list[Step], leaf: int, element: Any, step: float) -> list[Any]:
    """Run a program on arrays; one element of one leaf is moved in the imaginary direction."""
    entries: list[Any] = []
    leaves = 0
    for name, first, second in (*START, *program):
        if name in ("leaf", "constant"):
            made = numbers(len(entries)).astype(complex)
            if name == "leaf":
                made[element] += 1j * step if leaves == leaf else 0
                leaves += 1
            entries.append(made)
            continue
        tensor, operand = entries[first % len(entries)], entries[second % len(entries)]
        if name in VIEWS:
            entries.append(VIEWS[name](tensor, second))
        elif name in VALUES:
            entries.append(np.asarray(VALUES[name](tensor, operand)))
        else:
            INPLACE_NUMPY[name](tensor, operand.copy())
    return entries
