"""Routes: where a session applies, and with which policy."""

from typing import TYPE_CHECKING, Any

from offgrad.autograd import saved_tensor
from offgrad.autograd.saved_tensor import (
    Save,
    Unpacker,
    pop_hooks,
    push_hooks,
)
from offgrad.nn import Module
from offgrad.nn.hooks.call_stack import Call
from offgrad.policies.base import Policy
from offgrad.policies.by_module import ByModule, Rule

if TYPE_CHECKING:
    from offgrad.session.session import OffloadSession


class Route:
    """What is saved goes to a session, with one policy: inside a call, or until it is popped."""

    def __init__(self, session: "OffloadSession", policy: Policy) -> None:
        self.session = session
        self.policy = policy
        self.needs_replay: bool = getattr(policy, "recomputes", True)
        # Of the call it holds in, None if in none: how many names further out the rule matched.
        self.call: Call | None = None
        self._steps = 0

    @property
    def unpacker(self) -> Unpacker:
        """The session."""
        return self.session

    def pack(self, save: Save) -> Any:
        """Have the session place the tensor by the policy."""
        return self.session.pack(save, self.policy)

    def enter(self, call: Call, steps: int) -> None:
        """Hold until `call` ends: innermost, but for routes of this call with fewer steps."""
        self.call, self._steps = call, steps
        call.on_exit(lambda: pop_hooks(self))
        further_in: list[Route] = []
        for hooks in reversed(saved_tensor.state.hooks):
            if not isinstance(hooks, Route) or hooks.call is not call or hooks._steps >= steps:
                break
            further_in.append(hooks)
        for each in (self, *reversed(further_in)):
            pop_hooks(each)
            push_hooks(each)


def routes_to(session: "OffloadSession") -> "list[Route]":
    """Return the session's routes in this thread, innermost first."""
    found = [each for each in saved_tensor.state.hooks if isinstance(each, Route)]
    return [each for each in reversed(found) if each.session is session]


class Modules:
    """The modules inside which a session applies."""

    def __init__(self, policy: Policy, module: Module | None, model: Module | None) -> None:
        self._policy = policy
        self._module = module
        self._model = model

    def check(self) -> None:
        """Raise unless each pattern matches a module of the model as it is now.

        Raises:
            ValueError: listing names that are near.
        """
        if isinstance(self._policy, ByModule) and self._model is not None:
            self._policy.check(_qualified_names(self._model), type(self._model).__name__)

    def enter(self, session: "OffloadSession", call: Call) -> None:
        """Route to `session` inside `call`, if it is of a module that it applies to.

        Inside a checkpoint it is not: what is saved there is computed again, and used at once.
        """
        rule = None if saved_tensor.state.checkpointed else self._rule(call)
        if rule is None:
            return
        steps, policy = rule
        around = routes_to(session)
        # What a pattern says of all below holds already; another session may be further in.
        if not steps or not around or around[0].policy is not policy:
            Route(session, policy).enter(call, steps)

    def _rule(self, call: Call) -> Rule | None:
        if self._module is not None:
            steps = call.steps_below(self._module, self._model)
            return None if steps is None else Rule(steps, self._policy)
        assert isinstance(self._policy, ByModule)
        assert self._model is not None
        name = call.name_inside(self._model)
        return None if name is None else self._policy.find(name)


def modules_concerned(
    policy: Policy, module: Module | None, model: Module | None
) -> Modules | None:
    """Return the modules inside which a policy applies; None if it is not by module.

    Raises:
        TypeError: if `module` or `model` is none.
        ValueError: if policies by module lack a model, or match nothing in it.
    """
    for name, each in (("module", module), ("model", model)):
        if each is not None and not isinstance(each, Module):
            raise TypeError(f"{name} must be a Module, got {type(each).__name__}")
    if isinstance(policy, ByModule):
        if module is not None:
            raise ValueError(
                "policies by module name choose the modules themselves: pass either them, with "
                "model=, or one policy, with module="
            )
        if model is None:
            raise ValueError(
                "policies by module name need to know where names begin: pass model=, as in "
                "offload({'blocks.*': 'disk'}, model=model)"
            )
    elif module is None:
        return None
    modules = Modules(policy, module, model)
    modules.check()
    return modules


def _qualified_names(module: Module, name: str = "", above: tuple[Module, ...] = ()) -> list[str]:
    """Return all names of all modules below, not going round in circles."""
    names = [name]
    for key, each in module._modules.items():
        if each is not None and not any(each is one for one in (*above, module)):
            names += _qualified_names(each, f"{name}.{key}" if name else key, (*above, module))
    return names
