"""A stranger's script or callable, trained under a session, step by step."""

import inspect
import os
import random
import sys
import threading
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import numpy as np

import offgrad
from offgrad.cli.compare.config import Config
from offgrad.cli.compare.observer import Observer
from offgrad.cli.compare.training import Step
from offgrad.cli.script import Script as Program
from offgrad.cli.steps import StepEnds
from offgrad.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from offgrad.profiler import MemoryProfile
from offgrad.session import OffloadSession
from offgrad.session.scope import share_hooks

Turn = Callable[[], None]
Done = Callable[[Step], None]


class NotTrainable(Exception):
    """The target cannot be trained at all; the message is one line."""


class _EnoughSteps(BaseException):
    """Ends a script."""


class _Program:
    def __init__(self, config: Config, session: OffloadSession) -> None:
        self._config, self._session = config, session
        self._observer = Observer()
        random.seed(config.seed)
        np.random.seed(config.seed % 2**32)  # noqa: NPY002 (a script may use it)
        offgrad.manual_seed(config.seed)

    @property
    def profile(self) -> MemoryProfile | None:
        """The memory of the latest step, a failed one included."""
        self._observer.stop()
        return self._observer.profile

    @property
    def parameter_nbytes(self) -> int:
        """Bytes of all parameters, known after the first step."""
        return self._observer.parameter_nbytes

    @property
    def model_nbytes(self) -> int:
        """Bytes of parameters, gradients and optimizer state, known after the first step."""
        return self._observer.model_nbytes


class Script(_Program):
    """A script, run as ``python script arguments`` would, the whole of it in the session.

    A step ends with a call of ``step()`` of the first optimizer: see `StepEnds`. So the first step
    includes all that comes before the training. After the last step the script ends, by an
    exception that it should not catch.

    Which thread makes the first step is a race, and the loss and the gradients of a step are those
    of all threads; so a script with steps in several threads is not the same in each run.
    """

    def __init__(self, config: Config, session: OffloadSession) -> None:
        super().__init__(config, session)
        self._ends = StepEnds()
        self._num_steps = 0
        self._pid = os.getpid()
        self._threads: set[threading.Thread] = set()

    @property
    def has_steps_in_several_threads(self) -> bool:
        """Whether several threads called ``step()`` of an optimizer."""
        return len(self._threads) > 1

    def train(self, turn: Turn, done: Done) -> None:
        """Run the script; call `turn` before, and `done` after each step.

        Raises:
            NotTrainable: the script ended without a step.
        """

        def after_update(optimizer: Optimizer, *_: Any) -> None:
            if os.getpid() != self._pid:
                return  # the steps of a process that the script forked are its own
            self._threads.add(threading.current_thread())
            if not self._ends.ends(optimizer):
                return
            if self._num_steps < self._config.steps:
                self._num_steps += 1
                done(self._observer.end())
                turn()
            if self._num_steps == self._config.steps:
                raise _EnoughSteps
            self._observer.begin()

        register_optimizer_step_post_hook(after_update)
        turn()
        self._observer.begin()
        self._run()
        self._observer.stop()
        if not self._num_steps:
            raise NotTrainable(_without_steps(self._config.target))

    def _run(self) -> None:
        batch = str(self._config.batch)
        arguments = [each.replace("{batch}", batch) for each in self._config.arguments]
        with self._session:
            share_hooks()
            try:
                Program(self._config.target, tuple(arguments)).run()
            except _EnoughSteps:
                pass
            except SystemExit as exit:
                if exit.code not in (None, 0) or os.getpid() != self._pid:
                    raise


def _without_steps(script: str) -> str:
    text = f"{script} ended without a step: no optimizer of offgrad made one"
    if "torch" in sys.modules:
        text += "; it imports torch: change that to `import offgrad as torch`"
    return text


class StepFunction(_Program):
    """A function of a module, called in the session for each step.

    If the first call returns a callable, it was a factory: what it returned is called for each
    step. A call returns the loss, or None.
    """

    def train(self, turn: Turn, done: Done) -> None:
        """Call it for each step; call `turn` before, and `done` after each.

        Raises:
            NotTrainable: there is no such callable.
        """
        step = self._find()
        options = self._options(step)
        for number in range(self._config.steps):
            turn()
            self._observer.begin()
            with self._session:
                result = step(**options)
                if number == 0 and callable(result):
                    step, options = result, {}
                    result = step()
            loss = _value(result)
            del result
            done(self._observer.end(loss))
        turn()

    def _find(self) -> Callable[..., Any]:
        module_name, _, name = self._config.target.partition(":")
        sys.path.insert(0, os.getcwd())
        try:
            found: Any = import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (
                module_name == error.name or module_name.startswith(f"{error.name}.")
            ):
                raise NotTrainable(f"no module named {error.name!r}") from None
            raise
        for part in name.split("."):
            if not hasattr(found, part):
                near = get_close_matches(part, dir(found), n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise NotTrainable(f"{module_name} has no {name!r}{hint}")
            found = getattr(found, part)
        if not callable(found):
            raise NotTrainable(f"{self._config.target} is no function, but {type(found).__name__}")
        return found  # type: ignore[no-any-return]

    def _options(self, step: Callable[..., Any]) -> dict[str, Any]:
        try:
            signature = inspect.signature(step)
        except ValueError:  # of a class in C
            return {}
        options = {} if self._config.batch is None else {"batch": self._config.batch}
        if not options.keys() <= signature.parameters.keys():
            raise NotTrainable(
                f"--batch: {self._config.target} takes no argument named batch; only a factory "
                "with one can be told the batch size"
            )
        try:
            signature.bind(**options)
        except TypeError as error:
            raise NotTrainable(
                f"{self._config.target} cannot be called without arguments ({error}): a function "
                "that trains a step, or returns one that does, takes none, or batch for --batch"
            ) from None
        return options


def _value(result: Any) -> float | None:
    if isinstance(result, offgrad.Tensor):
        return float(result.item()) if result.numel() == 1 else None
    return float(result) if isinstance(result, (int, float, np.number)) else None
