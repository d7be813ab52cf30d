"""``torch.distributed``: not available. One process has rank 0 of 1; groups are refused."""

import enum as _enum
import os as _os

from offgrad import _refused
from offgrad._missing import missing as _missing

_FUNCTIONS = """
    all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all
    all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list
    destroy_process_group gather gather_object get_backend get_process_group_ranks
    init_device_mesh init_process_group irecv isend monitored_barrier new_group
    new_subgroups recv reduce reduce_scatter reduce_scatter_tensor scatter
    scatter_object_list send
"""
_WHY = (
    "Default process group has not been initialized, and cannot be: offgrad computes in one "
    "process; ask is_initialized() before"
)

globals().update(_refused.functions("offgrad.distributed", _FUNCTIONS, _WHY, ValueError))
globals().update(
    _refused.classes(
        "offgrad.distributed", "FileStore P2POp ProcessGroup TCPStore Work", _WHY, ValueError
    )
)


class ReduceOp(_enum.Enum):
    """Names of reductions."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class GroupMember:
    """Names of groups, which do not exist."""

    WORLD = None
    NON_GROUP_MEMBER = object()


group = GroupMember


def is_available() -> bool:
    """Return False."""
    return False


def is_initialized() -> bool:
    """Return False."""
    return False


def is_backend_available(backend: str) -> bool:
    """Return False."""
    return False


is_mpi_available = is_nccl_available = is_gloo_available = is_available
is_ucc_available = is_xccl_available = is_available


def is_torchelastic_launched() -> bool:
    """Return whether torchrun has started the process."""
    return "TORCHELASTIC_RUN_ID" in _os.environ


def get_rank(group: object = None) -> int:
    """Return 0."""
    return 0


def get_world_size(group: object = None) -> int:
    """Return 1."""
    return 1


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.distributed")
