"""What a session shows of itself, its use as a decorator, and the class that "auto" stands for."""

from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from importlib import import_module
from inspect import iscoroutinefunction, isgeneratorfunction
from typing import Any, Self, TypeVar

from offgrad._display import as_html
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.policies.base import Policy, convert
from offgrad.session.ledger import Ledger

F = TypeVar("F", bound=Callable[..., Any])


class ShownSession(ContextDecorator):
    """The base of `OffloadSession`.

    Attributes:
        policy: decides where each tensor goes.
    """

    policy: Any

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Return a session; for the policy ``"auto"`` one that chooses its policy itself.

        Raises:
            ValueError: if another policy gets a budget.
        """
        policy, budget = arguments[0] if arguments else options.get("policy"), options.get("budget")
        if cls.__name__ != "OffloadSession":
            return object.__new__(cls)
        if isinstance(policy, str) and policy == "auto":  # of a layer above this one
            made: Self = object.__new__(import_module("offgrad.prediction.auto").AutoSession)
            return made
        if budget is not None:
            raise ValueError(f"budget= is for the policy 'auto'; write offload('budget:{budget}')")
        return object.__new__(cls)

    @property
    def ledger(self) -> Ledger:
        """The figures so far."""
        raise NotImplementedError

    def sources(self) -> Iterable[SavedTensor]:
        """Return nothing: stores need no saved tensors."""
        return ()

    def __call__(self, function: F) -> F:
        """Decorate a function: the session applies while it runs."""
        if not callable(function) or isinstance(function, type):
            kind = f"the class {function.__name__}" if callable(function) else repr(function)
            raise TypeError(f"a session decorates a function, such as forward, got {kind}")
        if isgeneratorfunction(function) or iscoroutinefunction(function):
            raise TypeError(
                f"a session decorates functions that run to their end, got {function.__name__}, "
                "which pauses; use `with` inside it"
            )
        return super().__call__(function)

    def __repr__(self) -> str:
        ledger = self.ledger
        figures = f": {ledger.summary}" if ledger.saves else ""
        return f"<OffloadSession {self.policy}{figures}>"

    def _repr_html_(self) -> str:
        return as_html([f"OffloadSession {self.policy}"]) + self.ledger._repr_html_()


@convert.register
def _refuse(policy: ShownSession) -> Policy:
    """Refuse what has a method `place`, but of other arguments than a policy's."""
    raise TypeError("a session is no policy; pass the policy of it: session.policy")
