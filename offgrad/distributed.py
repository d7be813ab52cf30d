"""``torch.distributed`` of one process: rank 0 of 1, whose collectives are copies.

More processes are refused. Scripts that torchrun starts with one process run unchanged.
"""

import enum as _enum
import os as _os
from typing import Any as _Any

from offgrad import _refused
from offgrad._missing import missing as _missing

_FUNCTIONS = """
    batch_isend_irecv get_process_group_ranks init_device_mesh irecv isend monitored_barrier
    new_subgroups recv send
"""
_WHY = (
    "offgrad computes in one process, which has no others to talk to; ask get_world_size() before"
)

globals().update(_refused.functions("offgrad.distributed", _FUNCTIONS, _WHY, ValueError))
globals().update(
    _refused.classes("offgrad.distributed", "FileStore P2POp TCPStore", _WHY, ValueError)
)


class ReduceOp(_enum.Enum):
    """Names of reductions; those of one process change nothing."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class ProcessGroup:
    """The group of this process.

    Args:
        backend: the name of the backend, which is kept.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def rank(self) -> int:
        """Return 0."""
        return 0

    def size(self) -> int:
        """Return 1."""
        return 1

    def name(self) -> str:
        """Return the name of the backend."""
        return self._backend


class Work:
    """A collective that has ended."""

    def wait(self, timeout: _Any = None) -> bool:
        """Return True."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True


class GroupMember:
    """The groups of which the process is a member.

    Attributes:
        WORLD: the default group; None before `init_process_group`.
    """

    WORLD: ProcessGroup | None = None
    NON_GROUP_MEMBER = object()


group = GroupMember


def is_available() -> bool:
    """Return False: there is no communication."""
    return False


def is_initialized() -> bool:
    """Return whether `init_process_group` was called."""
    return GroupMember.WORLD is not None


def is_backend_available(backend: str) -> bool:
    """Return False."""
    return False


is_mpi_available = is_nccl_available = is_gloo_available = is_available
is_ucc_available = is_xccl_available = is_available


def is_torchelastic_launched() -> bool:
    """Return whether torchrun has started the process."""
    return "TORCHELASTIC_RUN_ID" in _os.environ


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: _Any = None,
    world_size: int = -1,
    rank: int = -1,
    **_: _Any,
) -> None:
    """Make the default group of this process.

    Args:
        backend: a name, which `get_backend` returns; "gloo" by default.
        init_method: accepted.
        timeout: accepted.
        world_size: 1; by default the environment variable WORLD_SIZE, or 1.
        rank: 0; by default the environment variable RANK, or 0.
        **_: PyTorch's other options.

    Raises:
        ValueError: for more than one process, or if there is a group already.
    """
    if GroupMember.WORLD is not None:
        raise ValueError("trying to initialize the default process group twice!")
    world = int(_os.environ.get("WORLD_SIZE", 1)) if world_size < 0 else world_size
    number = int(_os.environ.get("RANK", 0)) if rank < 0 else rank
    if (number, world) != (0, 1):
        raise ValueError(
            f"offgrad.distributed is of one process, rank 0 of 1, got rank {number} of {world}: "
            "start one process"
        )
    GroupMember.WORLD = ProcessGroup("gloo" if backend is None else backend)


def destroy_process_group(group: object = None) -> None:
    """End the default group."""
    _check(group)
    GroupMember.WORLD = None


def new_group(ranks: _Any = None, *_: _Any, **__: _Any) -> ProcessGroup:
    """Return the group of this process: `ranks` can only be [0]."""
    _check(None)
    if ranks is not None and list(ranks) != [0]:
        raise ValueError(f"new_group: the only rank is 0, got {list(ranks)}")
    assert GroupMember.WORLD is not None
    return GroupMember.WORLD


def get_backend(group: object = None) -> str:
    """Return the name of the backend."""
    return _check(group).name()


def get_rank(group: object = None) -> int:
    """Return 0."""
    return 0


def get_world_size(group: object = None) -> int:
    """Return 1."""
    return 1


def _check(group: object, rank: int | None = 0) -> ProcessGroup:
    """Return the group.

    Raises:
        ValueError: without a group, or for another rank.
    """
    if GroupMember.WORLD is None:
        raise ValueError(
            "Default process group has not been initialized: call init_process_group() before"
        )
    if rank not in (0, None):
        raise ValueError(f"the only rank of this group is 0, got {rank}")
    return GroupMember.WORLD


def _only(values: _Any, where: str) -> _Any:
    """Return the only item of a list, that of this process.

    Raises:
        ValueError: for all else.
    """
    if not isinstance(values, (list, tuple)) or len(values) != 1:
        raise ValueError(f"{where} needs a list with one item, for the only process, got {values}")
    return values[0]


def _done(async_op: bool) -> Work | None:
    return Work() if async_op else None


def barrier(group: object = None, async_op: bool = False, device_ids: _Any = None) -> Work | None:
    """Return at once."""
    _check(group)
    return _done(async_op)


def all_reduce(
    tensor: _Any, op: _Any = ReduceOp.SUM, group: object = None, async_op: bool = False
) -> Work | None:
    """Leave `tensor` as it is: the reduction of one."""
    _check(group)
    return _done(async_op)


def reduce(
    tensor: _Any,
    dst: int | None = None,
    op: _Any = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Leave `tensor` as it is: the reduction of one."""
    _check(group, dst if group_dst is None else group_dst)
    return _done(async_op)


def broadcast(
    tensor: _Any,
    src: int | None = None,
    group: object = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Leave `tensor` as it is: the process sends it to itself."""
    _check(group, src if group_src is None else group_src)
    return _done(async_op)


def broadcast_object_list(
    object_list: _Any, src: int | None = None, group: object = None, *_: _Any, **__: _Any
) -> None:
    """Leave the list as it is."""
    _check(group, src)


def all_gather(
    tensor_list: _Any, tensor: _Any, group: object = None, async_op: bool = False
) -> Work | None:
    """Copy `tensor` into the only tensor of `tensor_list`."""
    _check(group)
    _only(tensor_list, "a collective").copy_(tensor)
    return _done(async_op)


def all_gather_into_tensor(
    output_tensor: _Any, input_tensor: _Any, group: object = None, async_op: bool = False
) -> Work | None:
    """Copy the elements of `input_tensor` into `output_tensor`."""
    _check(group)
    output_tensor.copy_(input_tensor.reshape(output_tensor.shape))
    return _done(async_op)


def all_gather_object(object_list: _Any, obj: _Any, group: object = None) -> None:
    """Put `obj` into `object_list`."""
    _check(group)
    _only(object_list, "all_gather_object")
    object_list[0] = obj


def gather(
    tensor: _Any,
    gather_list: _Any = None,
    dst: int | None = None,
    group: object = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Copy `tensor` into the only tensor of `gather_list`."""
    _check(group, dst if group_dst is None else group_dst)
    return all_gather(gather_list, tensor, group, async_op)


def gather_object(
    obj: _Any, object_gather_list: _Any = None, dst: int | None = None, group: object = None
) -> None:
    """Put `obj` into `object_gather_list`."""
    _check(group, dst)
    _only(object_gather_list, "gather_object")
    object_gather_list[0] = obj


def scatter(
    tensor: _Any,
    scatter_list: _Any = None,
    src: int | None = None,
    group: object = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy the only tensor of `scatter_list` into `tensor`."""
    _check(group, src if group_src is None else group_src)
    return all_gather([tensor], _only(scatter_list, "scatter"), group, async_op)


def scatter_object_list(
    scatter_object_output_list: _Any,
    scatter_object_input_list: _Any = None,
    src: int | None = None,
    group: object = None,
) -> None:
    """Put the only object of the input into the output."""
    _check(group, src)
    scatter_object_output_list[0] = _only(scatter_object_input_list, "scatter_object_list")


def reduce_scatter(
    output: _Any,
    input_list: _Any,
    op: _Any = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> Work | None:
    """Copy the only tensor of `input_list` into `output`."""
    return all_gather([output], _only(input_list, "reduce_scatter"), group, async_op)


def reduce_scatter_tensor(
    output: _Any,
    input: _Any,
    op: _Any = ReduceOp.SUM,
    group: object = None,
    async_op: bool = False,
) -> Work | None:
    """Copy `input` into `output`."""
    return all_gather_into_tensor(output, input, group, async_op)


def all_to_all(
    output_tensor_list: _Any, input_tensor_list: _Any, group: object = None, async_op: bool = False
) -> Work | None:
    """Copy the only tensor of the input into that of the output."""
    return all_gather(output_tensor_list, _only(input_tensor_list, "all_to_all"), group, async_op)


def all_to_all_single(
    output: _Any, input: _Any, *_: _Any, group: object = None, async_op: bool = False
) -> Work | None:
    """Copy `input` into `output`."""
    return all_gather_into_tensor(output, input, group, async_op)


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.distributed")
