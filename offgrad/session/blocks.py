"""The ``with`` blocks of a session: in which threads, and inside which modules, it applies."""

from collections import Counter
from threading import get_ident
from typing import TYPE_CHECKING, Any

from offgrad_storage.interrupts import masked

from offgrad.autograd.handles import RemovableHandle
from offgrad.autograd.saved_tensor import pop_hooks, push_hooks
from offgrad.nn import Module
from offgrad.nn.hooks.call_stack import calls
from offgrad.nn.hooks.of_all_modules import register_module_forward_pre_hook
from offgrad.nn.hooks.registry import track_calls, untrack_calls
from offgrad.policies import ByModule, Policy
from offgrad.session.scope import SessionHooks, active_hooks, module_scope

if TYPE_CHECKING:
    from offgrad.session.session import OffloadSession


class Blocks:
    """The running blocks of one session. For use with its lock held, except as noted.

    Attributes:
        entered: so far.

    Args:
        policy: of the session.
        module: the policy applies inside this module only.
        model: the root of qualified module names.
    """

    def __init__(self, policy: Policy, module: Module | None, model: Module | None) -> None:
        self._scope = module_scope(policy, module, model)
        # Outside the modules in scope; None: the session has no effect there.
        self._policy_outside: Policy | None = policy
        if self._scope is not None:
            self._policy_outside = policy.otherwise if isinstance(policy, ByModule) else None
        self.entered = 0
        self._running: Counter[int] = Counter()  # by thread
        self._hook: RemovableHandle | None = None

    @property
    def are_running(self) -> bool:
        """Whether the session is entered in any thread. Call it with or without the lock."""
        return bool(self._running)

    def check(self) -> None:
        """Raise unless each pattern matches a module as the model is now. Without the lock."""
        if self._scope is not None:
            self._scope.check()

    def enter(self, session: "OffloadSession") -> None:
        """Begin a block of this thread."""
        if self._policy_outside is not None:
            push_hooks(SessionHooks(session, self._policy_outside))
        track_calls()
        self.entered += 1
        self._running[get_ident()] += 1
        if self._scope is not None and self._hook is None:
            scope = self._scope

            def enter_call(module: Module, args: Any) -> None:
                """Apply inside the call that begins, if its module is in scope."""
                call = calls.innermost
                if call is not None:
                    with masked:
                        scope.enter(session, call)

            self._hook = register_module_forward_pre_hook(enter_call)

    def exit(self, session: "OffloadSession") -> None:
        """End the innermost block of this thread.

        Raises:
            RuntimeError: none is left, or only those of other threads.
        """
        thread = get_ident()
        if not self._running:
            raise RuntimeError(f"{session} was exited more often than it was entered; use `with`")
        if thread not in self._running:
            raise RuntimeError(
                f"{session} was entered by another thread, whose tensors it offloads: exit it there"
            )
        self._running[thread] -= 1
        self._end_hook()
        for hooks in [each for each in active_hooks(session) if each.call is None][:1]:
            pop_hooks(hooks)
        untrack_calls()

    def forget_other_threads(self) -> None:
        """In a forked child: end the blocks of other threads, which do not exist there."""
        thread = get_ident()
        self._running = Counter({thread: self._running[thread]})
        self._end_hook()

    def _end_hook(self) -> None:
        self._running += Counter()  # drops zeros
        if not self._running and self._hook is not None:
            self._hook.remove()
            self._hook = None
