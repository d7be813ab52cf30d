"""Placing: the facts of a save, the answer of a policy, and the check of that."""

from offgrad.autograd.saved_tensor import Save
from offgrad.policies.base import (
    Keep,
    Placement,
    Policy,
    Recompute,
    SaveContext,
)


def context_of(save: Save, module: str, step: int, recompute_ops: int) -> SaveContext:
    """Return the facts of `save`."""
    array, maker = save.tensor._array, save.owner._grad_fn
    return SaveContext(
        op=save.op,
        slot=save.slot,
        module=module,
        dtype=array.dtype,
        shape=array.shape,
        nbytes=array.nbytes,
        is_parameter=save.is_parameter,
        is_output=save.is_output,
        storage=save.tensor._storage.uid,
        step=step,
        made_by="" if maker is None else maker.name(),
        recompute_ops=recompute_ops,
    )


def attributes_of(context: SaveContext) -> dict[str, object]:
    """Return what a store is told of an array."""
    return {
        "op": context.op,
        "slot": context.slot,
        "module": context.module,
        "shape": list(context.shape),
        "step": context.step,
    }


def place(policy: Policy, context: SaveContext) -> Placement:
    """Return the answer of `policy`.

    Raises:
        TypeError: if it is none.
        ValueError: if it is to recompute what cannot be.
    """
    placement = policy.place(context)
    if placement is None:
        return Keep()
    if not isinstance(placement, Placement):
        raise TypeError(
            f"a policy must return Keep, Store, Spill, Recompute or None, but {policy} returned "
            f"{type(placement).__name__} for {context}"
        )
    if isinstance(placement, Recompute) and not context.recompute_ops:
        raise ValueError(
            f"what cannot be computed again must be kept or stored, but {policy} returned "
            f"Recompute for {context}; do so only where recompute_ops is not 0"
        )
    return placement
