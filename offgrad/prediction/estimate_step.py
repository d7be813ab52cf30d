"""estimate: the memory, the bytes to stores and the time of a training step, before it is run.

The step runs as it stands on meta arrays, whose lifetimes `offgrad.memory.meter` follows, under the
real session and policy, with stores that only count.
"""

import copy
import inspect
import linecache
import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import offgrad_storage
from offgrad_storage.interrupts import interruptible, masked

from offgrad import memory
from offgrad.autograd import saved_tensor
from offgrad.autograd.tensor_base import TensorBase, metadata
from offgrad.kernels._meta import loops_without_work
from offgrad.memory.meta import as_meta
from offgrad.memory.meter import ArrayMeter, metered
from offgrad.memory.storage import Storage, new_uid
from offgrad.nn import Module
from offgrad.ops._core.device import META
from offgrad.prediction.estimate_clock import Clock
from offgrad.prediction.estimate_contents import INPUTS, TEMPORARY, contents
from offgrad.prediction.estimate_pages import EstimatedPages
from offgrad.prediction.estimate_queue import free_bandwidth, free_stall
from offgrad.prediction.estimate_result import Estimate, StoreBytes
from offgrad.prediction.estimate_stores import CountingStores
from offgrad.prediction.estimate_work import Work, rates
from offgrad.prediction.known_machines import remembered
from offgrad.prediction.machine import parse_rate
from offgrad.session.session import OffloadSession

if TYPE_CHECKING:
    from collections.abc import Iterator

_STEPS = 3
"""The first makes optimizer state, the second shows what goes to drives that take no time, the
third is reported."""

_TYPICAL_RATE = 1e9  # of a drive that was never measured
_PAGES = (
    "paged parameters, gradients and optimizer state count as much as their window holds; bytes "
    "and times of their reads and writes are not counted"
)
_MISSES_VALUES = re.compile("meta (device type )?tensor")
_PACKAGES = tuple(
    os.path.dirname(os.path.abspath(str(each))) + os.sep
    for each in (offgrad_storage.__file__, os.path.dirname(str(memory.__file__)))
)


def estimate(
    model: Module,
    *inputs: Any,
    policy: Any = None,
    optimizer: Any = None,
    loss_fn: Callable[[Any], Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    bandwidth: float | str | None = None,
    prefetch_nbytes: int | str = 32 << 20,
) -> Estimate:
    """Estimate a training step of `model` under a policy, without allocating its tensors.

    The step is ``optimizer.zero_grad(); loss = loss_fn(model(*inputs)); loss.backward();
    optimizer.step()``, with forward and loss inside ``offload(policy)``. It runs three times on the
    meta device, on copies: model, inputs and optimizer stay as they are. Bytes are those that
    `offgrad.memory.allocated` would count; arrays in flight to a drive depend on `bandwidth`.

    Args:
        model: on the CPU, or on the meta device.
        inputs: of its forward; tensors on either device.
        policy: as `offload` takes it; None for no session.
        optimizer: an optimizer of the model's parameters; or a class, or another function that
            makes one from parameters. None for none.
        loss_fn: returns the loss, a number, for what forward returns. By default it is the sum of
            all outputs.
        kwargs: keyword arguments of forward.
        bandwidth: of the drive under ``"disk"`` and ``"zarr"``, in bytes a second; or text. None
            for what is remembered of this machine's (see `Machine`), the slower of writes and
            reads; 1 GB/s if nothing is.
        prefetch_nbytes: as `offload` takes it.

    Raises:
        NotImplementedError: the step needs values, as shapes that depend on data and ``item()`` do,
            or an operation that gives no shapes. It names the line.
        TypeError: `model` is no module, or its forward does not take `inputs`.

    Example:
        >>> model = offgrad.nn.Linear(1000, 1000)
        >>> figures = offgrad.estimate(model, offgrad.empty(64, 1000), policy="disk")
        >>> figures.categories["parameters"]
        4004000
    """
    if not isinstance(model, Module):
        raise TypeError(
            f"estimate takes a module, which it copies, got a {type(model).__name__}; for a "
            "function, write a module whose forward calls it"
        )
    if isinstance(policy, str) and policy == "auto":
        raise ValueError(
            "estimate takes a policy that has decided, and 'auto' decides after two steps; pass "
            "'budget:SIZE', or the plan: session.chosen, or the text that offgrad tune prints"
        )
    _check_inputs(model, inputs, kwargs or {})
    rate, source = _rate(bandwidth)
    run = _Run(policy, rate, prefetch_nbytes)
    # Copies are on the meta device, too: their memory is made in this block.
    with masked, _isolated(run.meter), interruptible:
        try:
            run.copy(model, inputs, dict(kwargs or {}), optimizer)
            run.make_session(policy, prefetch_nbytes)
            for number in range(_STEPS):
                run.stores.drive.bandwidth = math.inf if number == _STEPS - 2 else rate
                run.step(loss_fn, is_last=number == _STEPS - 1)
        except (NotImplementedError, RuntimeError, TypeError, BufferError) as error:
            if isinstance(error, NotImplementedError) or _MISSES_VALUES.search(str(error)):
                raise NotImplementedError(_explained(error)) from error
            raise
        finally:
            run.forget()
        named = str(run.session.policy) if run.session is not None else "no session"
        return replace(run.result(named), bandwidth_source=source)


def _check_inputs(model: Module, inputs: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError where the model's forward does not take these inputs."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # of a function in C
        return
    try:
        signature.bind(*inputs, **kwargs)
    except TypeError as error:
        name = type(model).__name__
        raise TypeError(
            f"estimate(model, *inputs) calls {name}.forward{signature} with these inputs: {error}; "
            "pass tensors of the shapes that training has, as in estimate(model, x)"
        ) from None


def _rate(bandwidth: float | str | None) -> tuple[float, str]:
    """Return the bytes a second of the drive, and where they are from."""
    if bandwidth is not None:
        return parse_rate(bandwidth), "given"
    machine = remembered()
    if machine is None:
        return _TYPICAL_RATE, "supposed"
    return min(machine.write_rate, machine.read_rate), "measured"


@contextmanager
def _isolated(meter: ArrayMeter) -> "Iterator[None]":
    """Compute shapes only, outside of hooks and sessions of the caller."""
    state = saved_tensor.state
    hooks, state.hooks = state.hooks, ()
    try:
        with loops_without_work(), metered(meter), META:
            yield
    finally:
        state.hooks = hooks


class _Run:
    """The steps of one estimate."""

    def __init__(self, policy: Any, bandwidth: float, prefetch_nbytes: int | str) -> None:
        self.meter = ArrayMeter()
        self.clock = Clock()
        self.stores = CountingStores(self.clock, bandwidth)
        self.session: OffloadSession | None = None
        self.work = Work(rates())
        self.phase = ""
        self.phases: dict[str, int] = {}
        self._bandwidth = bandwidth
        self._peak = self._counted = self._seen = 0
        self._found: Any = None
        self.meter.on_compute, self.meter.make_twin = self._computed, self._twin
        # The copies of tensors by their ids, and these tensors, so that no others have their ids.
        self.meter.open_store = self.stores.of
        self.pages = EstimatedPages(self.meter)
        self.has_pages = False
        self._memo: dict[int, Any] = {}
        self._originals: list[Any] = []

    def copy(self, model: Module, inputs: Any, kwargs: Any, optimizer: Any) -> None:
        """Copy all to the meta device."""
        memo = self._memo
        given = (inputs, kwargs)
        is_made = hasattr(optimizer, "param_groups")
        state = [*optimizer.state.values()] if is_made else []
        for each in (*_tensors((given, state)), *model.parameters(), *model.buffers()):
            if each._storage.is_paged:  # a copy would be paged, too
                twin = memo[id(each)] = _twin(each, is_counted=True)
                twin._storage.role = each._storage.role
                take = self.pages.take if each._storage.placer is None else self.pages.take_alike
                take(twin._storage, each._storage.page.cache)
                self.has_pages = True
            elif each._storage.external or each._grad_fn is not None:
                memo[id(each)] = _twin(each)
        copied = copy.deepcopy((model, given, optimizer if is_made else None), memo)
        self.model, (self.inputs, self.kwargs), self.optimizer = copied
        for each in _tensors((self.inputs, self.kwargs)):
            each._storage.role = INPUTS
        for module in self.model.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    parameter._storage.role = "parameters"
            for buffer in module._buffers.values():
                if buffer is not None:
                    buffer._storage.role = "buffers"
        self.model.zero_grad()
        if optimizer is not None and not is_made:
            self.optimizer = optimizer(self.model.parameters())

    def forget(self) -> None:
        """Let go of the program's tensors: the run is part of cycles, and dies late."""
        self._memo.clear()  # deepcopy has put the originals there
        self._originals.clear()

    def make_session(self, policy: Any, prefetch_nbytes: int | str) -> None:
        """Make the session of a policy."""
        if policy is None:
            return
        options: dict[str, Any] = {"prefetch_nbytes": prefetch_nbytes}
        if isinstance(policy, Mapping):
            options["model"] = self.model
        self.session = OffloadSession(policy, **options)

    def step(self, loss_fn: Callable[[Any], Any] | None, is_last: bool) -> None:
        """Run one step; look at the contents of memory at the peak of the last."""
        counter = self.meter.counter
        self.clock.spend(0.0)  # forget what the step before has left
        self.start = self.clock.times(), self.stores.figures()
        drive = self.stores.drive
        drive.transfers, self.transfers = [], drive.transfers  # of the step before
        self.work = Work(rates())
        self.phases = {}
        self._known, self._counted, self._seen = self._counted, 0, 0
        with ExitStack() as cleanup:
            if is_last:
                counter.observers[self] = self._observe
                cleanup.callback(counter.observers.pop, self)
            self._run(loss_fn)
        self._peak = max(self.phases.values())

    def _run(self, loss_fn: Callable[[Any], Any] | None) -> None:
        with self._phase("forward"):
            (self.model if self.optimizer is None else self.optimizer).zero_grad()
            with self.session or nullcontext():
                loss = (loss_fn or _total)(self.model(*self.inputs, **self.kwargs))
        if not isinstance(loss, TensorBase):
            raise TypeError(f"loss_fn must return a tensor, it returned a {type(loss).__name__}")
        if not loss._requires_grad:
            return
        with self._phase("backward"):
            loss.backward()  # type: ignore[attr-defined]
        if self.optimizer is not None:
            with self._phase("optimizer"):
                self.optimizer.step()

    @contextmanager
    def _phase(self, name: str) -> "Iterator[None]":
        self.phase = name
        self.meter.counter.reset_peak()
        self.pages.reset_peak()
        yield
        self._counted = max(self._counted, self.meter.counter.peak)
        self.phases[name] = self.pages.peak_nbytes

    def _twin(self, tensor: Any) -> Any:
        """Return the copy of a tensor that the program reaches in another way."""
        found = self._memo.get(id(tensor))
        if found is None:
            found = self._memo[id(tensor)] = _twin(tensor)
            self._originals.append(tensor)
        return found

    def _computed(self, name: str, arrays: Any) -> None:
        self.clock.spend(self.work.seconds(name, arrays))

    def _observe(self, nbytes: int, *_: Any) -> None:
        """Note the contents where memory is fuller than before: at the peak, or 1% below it."""
        if nbytes > 1.01 * self._seen or self._seen < nbytes >= self._known:
            self._seen = nbytes
            self._found = (*contents(self.meter, self.pages, self.session), self.phase)

    def result(self, policy: str) -> Estimate:
        """Return the figures of the last step."""
        (_, compute, writing, reading), before = self.start
        after = self.clock.times()
        stores = {
            name: StoreBytes(*(a - b for a, b in zip(each, before.get(name, (0, 0)), strict=True)))
            for name, each in self.stores.figures().items()
        }
        seconds = after.compute_seconds - compute
        began = compute - seconds
        transfers = [each._replace(seconds=each.seconds - began) for each in self.transfers]
        stall = after.write_stall_seconds - writing + after.read_stall_seconds - reading
        free = free_bandwidth(transfers, seconds)
        if free is not None and stall <= free_stall(seconds):
            free = min(free, self._bandwidth)  # the step itself has not waited for this drive
        categories, saved, phase = self._found
        categories[TEMPORARY] += self._peak - sum(categories.values())
        return Estimate(
            policy=policy,
            peak_nbytes=self._peak,
            phase=phase,
            categories=categories,
            phases=self.phases,
            saved=dict(saved.most_common()),
            stores=stores,
            bandwidth=self._bandwidth,
            free_bandwidth=free,
            compute_seconds=seconds,
            slow_compute_seconds=self.work.slow_seconds,
            stall_seconds=stall,
            products=self.work.products,
            notes=self.stores.notes() + [_PAGES] * self.has_pages,
        )


def _total(output: Any) -> Any:
    """Return the sum of all outputs that require a gradient."""
    sums = [each.sum() for each in _tensors(output) if each._requires_grad]
    if sums:
        return sum(sums[1:], sums[0])
    return next((each.sum() for each in _tensors(output)), None)


def _tensors(values: Any) -> "Iterator[Any]":
    """Yield the tensors in nested lists, tuples and dicts."""
    if isinstance(values, TensorBase):
        yield values
    elif isinstance(values, Mapping):
        yield from _tensors(list(values.values()))
    elif isinstance(values, (list, tuple)):
        for each in values:
            yield from _tensors(each)


def _twin(tensor: Any, *, is_counted: bool = False) -> Any:
    """Return a leaf on the meta device of the same class, whose memory may count."""
    root = as_meta(metadata(tensor))
    if is_counted:
        storage = Storage.of_nothing(root)
    else:  # as the memory of a NumPy array
        storage = object.__new__(Storage)
        storage.root, storage.uid = root, new_uid()
        storage.external = True
    found = object.__new__(type(tensor))
    found._set(root, storage, tensor._requires_grad)
    return found


def _explained(error: BaseException) -> str:
    """Return what the step needs, on which line of the program, and a likely remedy."""
    where = ""
    trace = error.__traceback__
    while trace is not None:
        path, number = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        if not os.path.abspath(path).startswith(_PACKAGES):
            line = linecache.getline(path, number).strip()
            where = f", at {path}:{number}" + (f": {line}" if line else "")
        trace = trace.tb_next
    return (
        f"the estimate knows shapes and no values, which this step needs ({error}){where}. "
        "Estimate the part of the model before or after, or compute with a fixed shape: "
        "where(mask, x, 0) rather than x[mask], a size as a number rather than item()"
    )
