"""PagePolicies: where parameters, gradients and optimizer state go."""

from typing import TYPE_CHECKING, Any

from offgrad.autograd.tensor_base import metadata
from offgrad.policies import (
    ByModule,
    Cast,
    Keep,
    Offload,
    Policy,
    Recompute,
    SaveContext,
    Spill,
    Store,
    as_policy,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

OPS = {"parameters": "Parameter", "gradients": "Gradient", "optimizer state": "State"}
"""The op of each role, in the facts that policies get and in the ledger."""


class PagePolicies:
    """The policy of each role.

    Args:
        policy: of parameters.
        gradients, state: of the others; None for that of parameters.

    Raises:
        ValueError: one recomputes, or rounds what is no optimizer state.
    """

    def __init__(self, policy: Any, gradients: Any, state: Any) -> None:
        self.parameters = as_policy(policy)
        self._policies: dict[str, Policy] = {
            "parameters": self.parameters,
            "gradients": self.parameters if gradients is None else as_policy(gradients),
            "optimizer state": self.parameters if state is None else as_policy(state),
        }
        for role, each in self._policies.items():
            _check(each, role)

    def __contains__(self, role: str) -> bool:
        return role in self._policies

    @property
    def need_names(self) -> bool:
        """Whether one goes by the names of modules."""
        return any(isinstance(each, ByModule) for each in self._policies.values())

    def place(self, tensor: "Tensor", role: str, module: str, slot: str) -> Keep | Store | Spill:
        """Return the placement of a tensor.

        Raises:
            ValueError: it is to be recomputed, or rounded though it is no optimizer state.
        """
        policy = self._policies[role]
        array = metadata(tensor)
        context = SaveContext(
            op=OPS[role],
            slot=slot,
            module=module,
            dtype=array.dtype,
            shape=array.shape,
            nbytes=array.nbytes,
            is_parameter=False,
            is_output=False,
            storage=tensor._storage.uid,
            step=0,
        )
        if isinstance(policy, ByModule):
            rule = policy.find(module)
            policy = Keep() if rule is None else rule.policy
        placement = policy.place(context) or Keep()
        if not isinstance(placement, (Keep, Store, Spill)):
            raise ValueError(
                f"{role} cannot be recomputed: a policy for them returns Keep, Store or Spill, but "
                f"{policy} returned {placement} for {context}"
            )
        if role != "optimizer state" and not isinstance(placement, Keep) and not placement.lossless:
            raise _rounding(policy, role)
        return placement


def _check(policy: Policy, role: str) -> None:
    """Raise ValueError for a policy that stores no tensor of a role as it is."""
    if isinstance(policy, Recompute):
        raise ValueError(
            f"{role} cannot be recomputed, so {policy} would store none: name a store, such as disk"
        )
    rounds = isinstance(policy, Cast) or (isinstance(policy, Offload) and not policy.lossless)
    if rounds and role != "optimizer state":
        raise _rounding(policy, role)


def _rounding(policy: Policy, role: str) -> ValueError:
    return ValueError(
        f"{role} must come back bit for bit, but {policy} rounds: name a lossless store, and pass "
        "state= for optimizer state alone"
    )
