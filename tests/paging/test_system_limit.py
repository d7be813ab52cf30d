"""Where the operating system refuses memory, pages that nobody uses leave, as under a limit."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import psutil
import offgrad
from offgrad import memory, nn

with offgrad.offload_model("disk", window="64MiB") as offload:
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(24)])
assert offload.resident_nbytes == 64 << 20
memory.pool.trim()
allowed = psutil.Process().memory_info().data + (1 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (allowed, resource.RLIM_INFINITY))
memory.empty(8 << 20, "uint8")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is Linux's")
def test_pages_leave_before_the_system_has_no_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]
