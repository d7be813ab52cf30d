"""The largest batch of a variant that trains within a memory limit.

Each trial is a process. The operating system limits its memory (RLIMIT_DATA) to the given bytes
above the memory in use once its libraries are loaded, so all frameworks have the same limit. It
trains one step with one sample, which allocates the optimizer's state, and one with the batch.
"""

from benchmarks._lib.json_worker import WorkerError
from benchmarks._lib.session_steps import Processes
from offgrad.cli.compare.largest import Largest, search


def largest_batch(processes: Processes, variant: str, max_nbytes: int) -> Largest:
    """Return the largest batch that trains in `max_nbytes`; beyond 10 to within a tenth."""

    def peaks(batch: int) -> tuple[int, int] | None:
        with processes.new_process(variant, max_nbytes) as step:
            replies = [step(1)]
            try:
                replies.append(step(batch))
            except WorkerError:  # not every library survives a failed allocation
                return None
        if any("out_of_memory" in reply for reply in replies):
            return None
        one, whole = (int(reply["peak_over_base_nbytes"]) for reply in replies)
        return one, whole

    return search(peaks, max_nbytes)
