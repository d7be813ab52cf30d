"""Scope: where a session applies, and with which policy."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from offgrad.autograd import saved_tensor
from offgrad.autograd.save_hooks import SaveHooks, Unpacker
from offgrad.autograd.saved_tensor import Save, pop_hooks, push_hooks
from offgrad.nn import Module
from offgrad.nn.hooks.call_stack import Call, without_wrappers
from offgrad.policies import ByModule, Policy
from offgrad.policies.by_module import Rule

if TYPE_CHECKING:
    from offgrad.session.session import OffloadSession


class StandIn(SaveHooks, Protocol):
    """Hooks that get what a session would get."""

    session: "OffloadSession | None"
    """The session; None for all of them."""

    @property
    def is_running(self) -> bool:
        """Whether the session gets nothing now."""


stand_ins: list[StandIn] = []
"""For sessions entered from now on; of several for one session the last one."""


class SessionHooks:
    """The saved-tensor hooks of a session and one policy: inside a call, or until they are popped.

    Attributes:
        session: that they belong to.
        pack: `OffloadSession.pack` with the policy, or that of a stand-in.
        unpacker: the session, or that of a stand-in.
    """

    def __init__(self, session: "OffloadSession", policy: Policy) -> None:
        self.session, self.policy = session, policy
        self._stand_in: StandIn | None = None
        for each in stand_ins:
            if each.session in (None, session):
                self._stand_in = each
        self.renew()
        # The call inside which they apply, None if they are popped by hand; and how many names
        # further out the rule matched.
        self.call: Call | None = None
        self._depth = 0

    def renew(self) -> None:
        """Follow the stand-in, if it runs, else what the policy is now."""
        stand_in = self._stand_in
        self.pack: Callable[[Save], Any]
        self.unpacker: Unpacker
        if stand_in is not None and stand_in.is_running:
            self.needs_replay, self.unpacker = stand_in.needs_replay, stand_in.unpacker
            self.pack = self._pack_by_stand_in
        else:
            self.needs_replay = getattr(self.policy, "recomputes", True)
            self.unpacker = self.session
            self.pack = partial(self.session.pack, policy=self.policy, recomputes=self.needs_replay)

    def _pack_by_stand_in(self, save: Save) -> Any:
        stand_in = self._stand_in
        assert stand_in is not None
        if stand_in.is_running:
            return stand_in.pack(save)
        self.renew()  # it has ended inside of the block
        return self.pack(save)

    def enter(self, call: Call, depth: int) -> None:
        """Apply until `call` ends: innermost, but outside hooks of this call with less depth."""
        self.call, self._depth = call, depth
        call.on_exit(lambda: pop_hooks(self))
        further_in: list[SessionHooks] = []
        for hooks in reversed(saved_tensor.state.hooks):
            if not isinstance(hooks, SessionHooks):
                break
            if hooks.call is not call or hooks._depth >= depth:
                break
            further_in.append(hooks)
        for each in (self, *reversed(further_in)):
            pop_hooks(each)
            push_hooks(each)


def active_hooks(session: "OffloadSession") -> list[SessionHooks]:
    """Return the session's hooks in this thread, innermost first."""
    found = [each for each in saved_tensor.state.hooks if isinstance(each, SessionHooks)]
    return [each for each in reversed(found) if each.session is session]


def share_hooks() -> None:
    """Give the hooks of this thread to all threads that have pushed none, now and later."""
    # An attribute of the class of a `threading.local` is the default of each thread.
    type(saved_tensor.state).hooks = saved_tensor.state.hooks


class ModuleScope:
    """The modules inside which a session applies."""

    def __init__(self, policy: Policy, module: Module | None, model: Module | None) -> None:
        self._policy = policy
        self._module = module
        self._model = model

    def check(self) -> None:
        """Raise unless each pattern matches a module of the model as it is now.

        Raises:
            ValueError: listing similar names.
        """
        if isinstance(self._policy, ByModule) and self._model is not None:
            names = dict.fromkeys(map(without_wrappers, _qualified_names(self._model)))
            self._policy.check(names, type(self._model).__name__)

    def enter(self, session: "OffloadSession", call: Call) -> None:
        """Push hooks of `session` for `call`, if the session applies inside its module.

        It never does inside a checkpoint: tensors saved there are recomputed and used at once.
        """
        rule = None if saved_tensor.state.checkpointed else self._rule(call)
        if rule is None:
            return
        depth, policy = rule
        around = active_hooks(session)
        # A pattern that matched further out already applies, unless another session is further in.
        if not depth or not around or around[0].policy is not policy:
            SessionHooks(session, policy).enter(call, depth)

    def _rule(self, call: Call) -> Rule | None:
        if self._module is not None:
            depth = call.depth_below(self._module, self._model)
            return None if depth is None else Rule(depth, self._policy)
        assert isinstance(self._policy, ByModule)
        assert self._model is not None
        name = call.name_inside(self._model)
        return None if name is None else self._policy.find(name)


def module_scope(policy: Policy, module: Module | None, model: Module | None) -> ModuleScope | None:
    """Return the modules inside which a policy applies; None if it applies everywhere.

    Raises:
        TypeError: if `module` or `model` is not a module.
        ValueError: if policies by module lack a model, or a pattern matches no module of it.
    """
    for name, each in (("module", module), ("model", model)):
        if each is not None and not isinstance(each, Module):
            raise TypeError(f"{name} must be a Module, got {type(each).__name__}")
    if isinstance(policy, ByModule):
        if module is not None:
            raise ValueError(
                "policies by module name choose the modules themselves: pass either a mapping, "
                "with model=, or one policy, with module="
            )
        if model is None:
            raise ValueError(
                "policies by module name need a model, from which names are counted: pass model=, "
                "as in offload({'blocks.*': 'disk'}, model=model)"
            )
    elif module is None:
        return None
    scope = ModuleScope(policy, module, model)
    scope.check()
    return scope


def _qualified_names(module: Module, name: str = "", above: tuple[Module, ...] = ()) -> list[str]:
    """Return all names of all modules below; cycles are followed once."""
    names = [name]
    for key, each in module._modules.items():
        if each is not None and not any(each is one for one in (*above, module)):
            names += _qualified_names(each, f"{name}.{key}" if name else key, (*above, module))
    return names
