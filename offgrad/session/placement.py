"""Placement: the facts of a save, and the checked decision of a policy."""

from offgrad.autograd.saved_tensor import Save
from offgrad.policies import Keep, Placement, Policy, Recompute, SaveContext


def save_context(save: Save, module: str, step: int, recompute_ops: int) -> SaveContext:
    """Return the facts of `save`."""
    array, maker = save.array, save.owner._grad_fn
    return SaveContext(
        op=save.op,
        slot=save.slot,
        module=module,
        dtype=array.dtype,
        shape=array.shape,
        nbytes=array.nbytes,
        is_parameter=save.is_parameter,
        is_output=save.is_output,
        storage=save.storage.uid,
        step=step,
        made_by="" if maker is None else type(maker).__name__,
        recompute_ops=recompute_ops,
    )


def store_attributes(context: SaveContext) -> dict[str, object]:
    """Return the facts that a store keeps with an array."""
    return {
        "op": context.op,
        "slot": context.slot,
        "module": context.module,
        "shape": list(context.shape),
        "step": context.step,
    }


def decide(policy: Policy, context: SaveContext) -> Placement:
    """Return the placement that `policy` answers with; `Keep` if it has no answer.

    Raises:
        TypeError: if the answer is not a placement.
        ValueError: if it is `Recompute` for a tensor that cannot be recomputed.
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
            "a tensor that cannot be recomputed must be kept or stored, but "
            f"{policy} returned Recompute for {context}; return it only where recompute_ops is not "
            "0"
        )
    return placement
