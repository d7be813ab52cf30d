"""The worker process of `benchmarks.bench_vs_torch`: one row in one framework.

A process of torch does not import offgrad.
"""

import json
import traceback
from importlib import import_module
from typing import Any

from benchmarks._lib import versus_small, versus_training
from benchmarks._lib.json_worker import Reply, serve


def main(job: str) -> None:
    """Serve the requests of `benchmarks._lib.versus_measure`: gradients, turn, peak, libraries."""
    serve(_Worker(**json.loads(job)).answer)


class _Worker:
    def __init__(
        self,
        framework: str,
        compiles: bool,
        variant: str,
        threads: int,
        job: str,
        sizes: dict[str, Any],
        folder: str,
    ) -> None:
        self._lib = import_module(framework)
        if hasattr(self._lib, "set_num_threads"):
            self._lib.set_num_threads(threads)
        make = getattr(versus_training, job, None) or getattr(versus_small, job)
        self._job = make(self._lib, compiles, variant, folder, sizes)

    def answer(self, do: str, **arguments: Any) -> Reply:
        """Return the reply to a request; ``{"error": ...}`` if it failed."""
        try:
            if do == "libraries":
                return _libraries(self._lib)
            reply = getattr(self._job, do)(**arguments)
        except Exception as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines() or [""]
            return {"error": f"{type(error).__name__}: {lines[0]}"}
        return {} if reply is None else dict(reply)


def _libraries(lib: Any) -> Reply:
    from threadpoolctl import threadpool_info

    pools = [
        {key: each.get(key) for key in ("internal_api", "version", "architecture", "num_threads")}
        for each in threadpool_info()
    ]
    reply: Reply = {"version": str(lib.__version__), "thread_pools": pools}
    if lib.__name__ == "torch":
        reply["cpu_capability"] = lib.backends.cpu.get_cpu_capability()
        reply["mkl"], reply["mkldnn"] = (
            lib.backends.mkl.is_available(),
            lib.backends.mkldnn.is_available(),
        )
    return reply
