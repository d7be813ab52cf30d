"""The categories of tensor memory: why each byte is there.

A byte belongs to one category at a time, the first of these that applies:

- parameter, gradient, optimizer state: the role that modules and optimizers gave it; buffers of
  modules count as parameters, and pages of `offload_model` as what they hold.
- in flight: handed to a store, which has not yet captured it, and the memory of packs that stores
  fill or read.
- prefetched: read ahead for a backward pass, and not used yet.
- input: made outside of modules by no operation on tensors: data, targets. Of what was made before
  the recording, tensors without a graph that an operation takes.
- saved for backward: kept in memory for backward, in a pool store as well.
- temporary: all else.
"""

PARAMETER, GRADIENT, STATE, SAVED, PREFETCHED, IN_FLIGHT, INPUT, TEMPORARY = range(8)

CATEGORIES = (
    "parameter",
    "gradient",
    "optimizer state",
    "saved for backward",
    "prefetched",
    "in flight",
    "input",
    "temporary",
)

ROLES = {
    "parameters": PARAMETER,
    "buffers": PARAMETER,
    "gradients": GRADIENT,
    "optimizer state": STATE,
    "input": INPUT,  # no role: see `Tape`
}
"""Categories by `Storage.role`."""

LASTING = (PARAMETER, GRADIENT, STATE)
