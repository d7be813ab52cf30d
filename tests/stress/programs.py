"""Random programs: those of the parity tests, with modules, checkpoints, Functions and training.

A program depends on its seed alone. It is a list of steps over a pool of tensors, each a name and
two numbers, as in `tests.parity.programs`. Some of its steps act on the session instead: they leave
and enter it, raise, collect garbage or fork; a run without a session skips them.
"""

import functools
import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from tests.parity.programs import INPLACE, SEVERAL, SHAPE, VALUES, VIEWS, Entry, Run, Step

WEIGHTS: dict[str, float] = {
    "leaf": 1,
    "constant": 1,
    **dict.fromkeys(VIEWS, 0.5),
    **dict.fromkeys(SEVERAL, 0.3),
    **dict.fromkeys(VALUES, 1.2),
    **dict.fromkeys(INPLACE, 0.4),
    "detach": 0.5,
    "no_grad mul_": 0.3,
    "no_grad copy_": 0.3,
    "product": 1,
    "softmax": 1,
    "module first": 1,
    "module blocks": 1.5,
    "function": 1,
    "checkpoint": 1,
    "hook": 0.7,
    "retain_grad": 0.5,
    "backward": 0.6,
    "backward of inputs": 0.6,
    "gradient": 0.8,
    "train": 0.3,
    "drop": 1.5,
    "leave": 0.7,
    "enter": 0.7,
    "raise": 0.4,
    "collect": 0.2,
}
"""How often each step is chosen."""

BACKWARD = ("backward", "backward of inputs", "gradient", "train")
"""Steps that use saved tensors."""


@dataclass(frozen=True)
class Program:
    """The steps of a program, and the shape of its tensors."""

    steps: tuple[Step, ...]
    shape: tuple[int, ...]

    @classmethod
    def random(cls, random: Random) -> "Program":
        """Return a program of up to 24 steps."""
        names = random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=random.randint(3, 24))
        steps = tuple((each, random.randrange(40), random.randrange(13)) for each in names)
        shape = random.choices([SHAPE, (16, 24), (96, 96)], [12, 3, 1])[0]
        return cls(steps, shape)


@functools.cache
def _classes(lib: Any) -> tuple[type[Any], type[Any]]:
    """Return a module and a custom Function of a library."""

    class Scale(lib.nn.Module):  # type: ignore[misc]
        """Works for any shape."""

        def __init__(self, weight: float) -> None:
            super().__init__()
            self.weight = lib.nn.Parameter(lib.tensor([weight], dtype=lib.float64))

        def forward(self, x: Any) -> Any:
            return (x * self.weight).tanh() * x

    class Cubic(lib.autograd.Function):  # type: ignore[misc]
        """x^3; saves an input, an output and an intermediate value."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            square = x * x
            result = square * x
            ctx.save_for_backward(x, square, result)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            x, square, result = ctx.saved_tensors
            # What is saved is constant, so that the second derivative misses its terms as well.
            return grads[0] * (x * x * 2.5 + square.detach() * 0.5) + (result - result)

    return Scale, Cubic


def make_model(lib: Any) -> Any:
    """Return a model with the modules ``first`` and ``blocks``."""
    scale = _classes(lib)[0]
    model = lib.nn.Module()
    model.first = scale(0.7)
    model.blocks = lib.nn.Sequential(scale(0.9), scale(-0.6))
    return model


class Rejected(Exception):
    """Raised by a program on purpose."""


class StressRun(Run):
    """One execution of a program.

    Args:
        lib: offgrad or torch.
        program: to be run.
        open_session: returns a session for the model; None to run without one.
        between: called before each step.
    """

    def __init__(
        self,
        lib: Any,
        program: Program,
        open_session: Callable[[Any], AbstractContextManager[Any]] | None = None,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        self.program = program
        self._between = between
        self.model = make_model(lib)
        parameters = list(self.model.parameters())
        self.optimizer = lib.optim.SGD(parameters, lr=0.05, momentum=0.5)
        super().__init__(lib, program.shape)
        self.leaves += parameters
        self.session = None if open_session is None else open_session(self.model)
        self._entered = ExitStack()

    def execute(self) -> list[str]:
        """Do all steps, within the session at first; return the outcome of each."""
        with self._entered:
            self._enter()
            return self.run(list(self.program.steps))

    def step(self, step: Step) -> str:
        self._between()
        return super().step(step)

    def _enter(self) -> None:
        if self.session is not None:
            self._entered.enter_context(self.session)

    def _other(self, name: str, tensor: Any, second: int) -> None:
        made: Any = None
        if name == "leave":
            self._entered.close()
        elif name == "enter":
            self._enter()
        elif name == "raise":
            self._raise_inside(tensor)
        elif name == "collect":
            gc.collect()
        elif name == "drop":
            self._drop(tensor)
        elif name == "product":
            made = _product(tensor.contiguous())
        elif name == "softmax":
            made = tensor.reshape(-1).softmax(-1)
        elif name == "module first":
            made = self.model.first(tensor.contiguous())
        elif name == "module blocks":
            made = self.model.blocks(tensor.contiguous())
        elif name == "function":
            made = _classes(self.lib)[1].apply(tensor.contiguous())
        elif name == "checkpoint":
            made = self._checkpoint(tensor.contiguous())
        elif name == "gradient":
            made = self._one_gradient(tensor, second)
        elif name == "backward of inputs":
            leaf = self.leaves[second % len(self.leaves)]
            tensor.sum().backward(inputs=[leaf], retain_graph=True)
        elif name == "train":
            self.optimizer.zero_grad()
            tensor.sum().backward(retain_graph=True)
            self.optimizer.step()
        else:
            super()._other(name, tensor, second)
        if made is not None:  # a gradient of a sum is one number, expanded
            self._add(made, None, any(not stride for stride in made.stride()))

    def _raise_inside(self, tensor: Any) -> None:
        """Raise in forward, and in a hook of backward."""
        try:
            if self.session is not None:
                with self.session:
                    self.model.first(tensor.contiguous())
                    raise Rejected
        except Rejected:
            pass

        def reject(grad: Any) -> None:
            raise Rejected

        made = (tensor.contiguous() * 0.5).sin().tanh()
        if made.requires_grad:
            made.register_hook(reject)
            with suppress(Rejected):
                made.sin().sum().backward(retain_graph=True)

    def _checkpoint(self, tensor: Any) -> Any:
        def function(x: Any) -> Any:
            return self.model.blocks(x.sin()) * x

        return self.lib.utils.checkpoint.checkpoint(function, tensor, use_reentrant=False)

    def _one_gradient(self, tensor: Any, second: int) -> Any:
        """Return a gradient with a graph of its own, where there is one."""
        (found,) = self.lib.autograd.grad(
            tensor.sum(),
            [self.leaves[second % len(self.leaves)]],
            retain_graph=True,
            create_graph=True,
            allow_unused=True,
        )
        return found

    def _drop(self, tensor: Any) -> None:
        """Let go of a tensor and, perhaps, its graph."""
        for index, each in enumerate(self.entries):
            if each.tensor is tensor and not any(tensor is leaf for leaf in self.leaves):
                self.retaining = [one for one in self.retaining if one is not tensor]
                self.serial += 1
                self.entries[index] = Entry(tensor.detach().clone(), self.serial, False)

    def results(self) -> list[Any]:
        """Return the first gradients of the last tensors, the second of one, and all ``.grad``."""
        last = self.entries[-3:]
        found = [self._gradient(each.tensor, False) for each in last]
        found.append(self._gradient(last[-1].tensor, True))
        found.append(self.accumulated_of(last[:1]))
        return found

    def accumulated_of(self, entries: list[Entry]) -> Any:
        """Run backward from some tensors; return every ``.grad``, or the name of an error."""
        every, self.entries = self.entries, entries
        try:
            outcomes, gradients = self.accumulated()
        finally:
            self.entries = every
        failed = [each for each in outcomes if each != "done"]
        return failed[0] if failed else gradients


def _product(tensor: Any) -> Any:
    flat = tensor.reshape(-1)[:256]
    return (flat[:, None] @ flat[None, :]).tanh().mean(0)


class Outcome(NamedTuple):
    """The result of a run, as plain data.

    Attributes:
        steps: the outcome of each step: see `Run.step`.
        values: the bits of all tensors.
        results: see `StressRun.results`; arrays as bits, errors as the names of their classes.
    """

    steps: list[str]
    values: list[bytes]
    results: list[Any]


def outcome(run: StressRun) -> Outcome:
    """Execute a run."""
    steps = run.execute()
    values = [each.tobytes() for each in run.values()]
    return Outcome(steps, values, [_as_bits(each) for each in run.results()])


def _as_bits(result: Any) -> Any:
    return result if isinstance(result, str) else [each.tobytes() for each in result]


def difference(found: Outcome, right: Outcome, steps: Sequence[Step], may_fail: bool) -> str:
    """Return the first difference of a run from that which keeps all; empty if there is none.

    Where keeping loses a value to a change in place, a store may have it: then the runs go apart.

    Args:
        found: of the run under a policy.
        right: of the run that keeps.
        steps: of the program.
        may_fail: whether any error is right, as drives fail.
    """
    for step, mine, theirs in zip(steps, found.steps, right.steps, strict=False):
        if mine == theirs:
            continue
        recovered = theirs == "RuntimeError" and mine == "done" and step[0] in BACKWARD
        if recovered or (may_fail and mine != "done"):
            return ""
        return f"step {step}: {mine}, but {theirs} without a session"
    if len(found.steps) != len(right.steps) or found.values != right.values:
        return "other values"
    for index, (mine, theirs) in enumerate(zip(found.results, right.results, strict=True)):
        if theirs == "RuntimeError":
            return ""
        if mine != theirs and not (may_fail and isinstance(mine, str)):
            text = mine if isinstance(mine, str) else "other bits"
            return f"result {index}: {text}, but {theirs if isinstance(theirs, str) else 'bits'}"
    return ""
