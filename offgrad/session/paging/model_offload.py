"""ModelOffload: parameters, gradients and optimizer state under a policy."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from offgrad_storage import AbstractArrayStore
from offgrad_storage.interrupts import MaskedLock, masked

from offgrad import memory
from offgrad._display import as_html
from offgrad.autograd.tensor_base import drop_array, wrap
from offgrad.memory import Storage, turn_paged, turn_resident
from offgrad.memory.forks import forkables
from offgrad.nn import Module, Parameter
from offgrad.nn.hooks.call_stack import without_wrappers
from offgrad.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from offgrad.nn.parameter import is_lazy
from offgrad.policies import Keep, Spill, Store
from offgrad.session.ledger import LedgerRow, PageLedger
from offgrad.session.named_stores import INFLIGHT_NBYTES, MAX_PACK_NBYTES
from offgrad.session.open_stores import OpenStores
from offgrad.session.paging.page import Page, PageName, measure_references
from offgrad.session.paging.page_cache import PageCache
from offgrad.session.paging.page_policies import OPS, PagePolicies
from offgrad.session.paging.parameter_names import ParameterNames
from offgrad.session.paging.use_order import UseOrder
from offgrad.session.saved_array import compact, has_no_gaps

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.handles import RemovableHandle

_MIN_PACKED_NBYTES = 64 * MAX_PACK_NBYTES  # bounds of which packs take a small part

_BATCH_PART = 4  # of a window: what operations over many tensors, as an optimizer's, take at once


class Placer(NamedTuple):
    """Places gradients, copies and state of one parameter; `Storage.placer` of its memory."""

    owner: "ModelOffload"
    number: int

    def __call__(self, tensor: Any, role: str) -> None:
        self.owner.place_alike(self.number, tensor, role)

    @property
    def title(self) -> str:
        """The parameter's name, for messages."""
        return self.owner.name_of(self.number)


class ModelOffload:
    """Pages parameters, and with each its gradient and the optimizer's state of it.

    As a context manager it pages the parameters that modules register inside the block, as soon as
    they do: the model is never in memory as a whole.

    Args:
        policy: of parameters: text such as ``"disk"`` or ``"budget:512MiB,spill=disk"``, or any
            other policy that keeps, stores or spills; by module only for a model that exists.
        gradients: of gradients; None for that of parameters.
        state: of optimizer state; None for that of parameters. It alone may round, and only if it
            says so: each time a page of state is written, ``"cast:bfloat16,then=disk"`` changes a
            number x by at most ``abs(x) / 2**8``, and ``"cast:int8,then=disk"`` by at most
            ``m / 127`` and a little, m being the largest of 128 numbers in a row; see
            `offgrad.storage.codec` and its `error_bound`. ``"cast:float16"`` makes zeros of numbers
            below ``2**-25``, as Adam's second moments often are.
        directory: where stores write.
        window: the bytes of memory for pages of a policy without a budget of its own: those read
            ahead and being written included. Operations over many tensors take a quarter of it at
            once.

    Attributes:
        policy: of parameters.
    """

    def __init__(
        self,
        policy: Any,
        *,
        gradients: Any = None,
        state: Any = None,
        directory: str | None = None,
        window: int | str = "256MiB",
    ) -> None:
        self._policies = PagePolicies(policy, gradients, state)
        self.policy = self._policies.parameters
        self._window_nbytes = memory.parse_nbytes(window)
        self.lock = MaskedLock(reentrant=True)
        self.is_writing = False
        self._order = UseOrder()
        self._stores = OpenStores(directory)
        self._caches: dict[Store | Spill, PageCache] = {}
        self._names = ParameterNames()
        self._rows: dict[tuple[int, str], LedgerRow] = {}
        self._registration: list[RemovableHandle] = []
        measure_references()
        memory.register_reclaimable(self)
        forkables.add(self)

    def __enter__(self) -> "ModelOffload":
        if self._policies.need_names:
            raise ValueError(
                "inside the block that makes a model its modules have no names yet, so a mapping "
                "by module name cannot apply: make the model, then call "
                "offgrad.offload_model(model, {...})"
            )
        self._registration += [
            register_module_parameter_registration_hook(self._register),
            register_module_module_registration_hook(self._note_parent),
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._registration:
            raise RuntimeError(f"{self} was exited more often than it was entered; use `with`")
        for _ in range(2):
            self._registration.pop().remove()

    def __repr__(self) -> str:
        held = memory.format_nbytes(self.resident_nbytes)
        total = memory.format_nbytes(sum(each.nbytes for each in self._pages()))
        return f"<ModelOffload {self.policy}: {held} of {total} in memory>"

    def _repr_html_(self) -> str:
        return as_html([repr(self)[1:-1]]) + self.ledger._repr_html_()

    @property
    def resident_nbytes(self) -> int:
        """The bytes of memory that paged tensors take now."""
        with self.lock:
            return sum(each.held_nbytes for each in self._caches.values())

    @property
    def ledger(self) -> PageLedger:
        """The figures so far, by role, name and module."""
        with self.lock:
            self.name_rows()
            return PageLedger.of(self._rows.values())

    def name_rows(self) -> None:
        """Put the names that parameters have now into the rows of their pages."""
        self._names.qualify()
        for (number, _), row in self._rows.items():
            if self._names.is_known(number):
                row.module, row.slot = self._names.name(number)

    def name_of(self, number: int) -> str:
        """Return the name that a parameter has now."""
        with self.lock:
            self._names.qualify()
            return ".".join(filter(None, self._names.name(number)))

    # Paging

    def add_model(self, model: Module) -> None:
        """Page the parameters of a model, and the gradients that they have."""
        names = {id(each): name for name, each in model.named_parameters()}
        self._names.add_module(model)
        for module_name, module in model.named_modules():
            for name, param in module._parameters.items():
                if param is not None and names.get(id(param), "").rpartition(".")[2] == name:
                    self._take_over(param, without_wrappers(module_name), name)

    def _take_over(self, param: Any, module: str, name: str) -> None:
        """Page a parameter, and what another owner has paged of it."""
        states: list[Storage] = []
        placer = param._storage.placer
        if isinstance(placer, Placer):
            states = placer.owner._bring_back(param, placer.number)
        self._add_parameter(param, module, name)
        for each in states:
            self.place_alike(param._storage.placer.number, wrap(each.root, each), "optimizer state")

    def _register(self, module: Module, name: str, param: Any) -> None:
        """Page a parameter that a module registers."""
        if isinstance(param, Parameter):
            self._names.add_module(module)
            self._add_parameter(param, type(module).__name__, name)

    def _note_parent(self, module: Module, name: str, child: Any) -> None:
        """Note a module whose name and place name the parameters of its children."""
        self._names.add_module(module)

    def _add_parameter(
        self, param: Any, module: str, name: str, copied_from: int | None = None
    ) -> None:
        if param._storage.placer is None:
            number = self._names.add(param, module, name, copied_from)
            if is_lazy(param):  # it is paged when it gets a shape
                param._storage.placer = Placer(self, number)
                return
            self._add(param, PageName(number, "parameters"))
            if param._grad is not None:
                self.place_alike(number, param._grad, "gradients")
        elif param._storage.is_paged:  # a module registers it once more
            drop_array(param)

    def place_alike(self, number: int, tensor: "Tensor", role: str) -> None:
        """Page a gradient, a copy or optimizer state of a parameter."""
        if tensor._storage.is_paged:  # it shares the memory of another tensor
            drop_array(tensor)
        elif role == "parameters":
            if self._names.parameter(number) is tensor:  # other memory was set as its data
                self._add(tensor, PageName(number, role))
            else:
                self._add_parameter(tensor, *self._names.name(number), number)
        elif role == "gradients":
            self._add(tensor, PageName(number, role))
        elif role in self._policies:
            self._add(tensor, PageName(number, role, self._next_serial(number)))

    def _next_serial(self, number: int) -> int:
        """Return the first number that no state of a parameter has.

        State that each step makes anew then has the name of the one before, and is predicted.
        """
        taken = PageName(number, "optimizer state")
        caches = self._caches.values()
        return next(
            serial
            for serial in itertools.count(1)
            if all(each.table.find(taken._replace(serial=serial)) is None for each in caches)
        )

    def announce(self, pages: Sequence[Any]) -> None:
        """Learn the order in which a backward pass will use pages."""
        own = [each for each in pages if isinstance(each, Page) and each.cache.owner is self]
        with self.lock:
            self._order.announce([each.name for each in own])
            for cache in dict.fromkeys(each.cache for each in own):
                cache.read_ahead()

    def _add(self, tensor: Any, name: PageName) -> None:
        """Page the memory of a tensor, unless the policy keeps it or it cannot leave."""
        storage = tensor._storage
        module, slot = self._names.name(name.parameter)
        placement = self._policies.place(tensor, name.role, module, slot)
        if name.role == "parameters":
            storage.placer = Placer(self, name.parameter)
            storage.max_batch_nbytes = self._window_nbytes // _BATCH_PART  # of its state
        if isinstance(placement, Keep) or not _can_leave(storage):
            return
        storage.root = compact(storage.root)[0]
        cache = self._cache(placement)
        storage.max_batch_nbytes = cache.bound_nbytes // _BATCH_PART
        row_key = self._names.original(name.parameter), name.role
        row = self._rows.get(row_key)
        if row is None:
            row = LedgerRow(op=OPS[name.role], slot=slot, module=module)
            self._rows[row_key] = row
        row.add_stores(str(placement.store if isinstance(placement, Spill) else placement))
        row.saves += 1
        row.logical_nbytes += storage.nbytes
        page = Page(name, storage, cache, row)
        with masked:
            turn_paged(storage, page)
            drop_array(tensor)
            cache.add(page)

    def _cache(self, placement: Any) -> PageCache:
        cache = self._caches.get(placement)
        if cache is None:
            store, bound = placement, self._window_nbytes
            if isinstance(placement, Spill):
                store = placement.store
                bound = bound if placement.nbytes is None else placement.nbytes
            opened = partial(self._open, store, bound)
            is_strict = isinstance(placement, Spill)
            cache = PageCache(self, self._order, self.lock, opened, bound, is_strict)
            self._caches[placement] = cache
        return cache

    def _open(self, placement: Store, bound_nbytes: int) -> AbstractArrayStore:
        # The cache bounds the memory of pending writes: a put that waits would stop computing.
        inflight_nbytes = max(INFLIGHT_NBYTES, bound_nbytes)
        pack_nbytes = MAX_PACK_NBYTES if bound_nbytes >= _MIN_PACKED_NBYTES else 0
        return self._stores.of(placement, pack_nbytes, inflight_nbytes)

    def bring_back(self, model: Module) -> None:
        """Return the parameters of a model to memory, their gradients and optimizer state as well.

        Raises:
            StoreError: a tensor cannot be read; it and those after it stay paged.
        """
        for param in model.parameters():
            placer = param._storage.placer
            if isinstance(placer, Placer) and placer.owner is self:
                self._bring_back(param, placer.number)

    def _bring_back(self, param: "Tensor", number: int) -> list[Storage]:
        """Return a parameter to memory, and what belongs to it; return the states' storages."""
        states = []
        for page in list(self._pages()):
            storage = page.storage()
            if page.name.parameter == number and storage is not None:
                turn_resident(storage, page.array)
                if page.name.role == "optimizer state":
                    states.append(storage)
        storage = param._storage
        storage.placer = None
        storage.__dict__.pop("max_batch_nbytes", None)
        for tensor in (param, param._grad):
            if tensor is not None and tensor._spec is not None:
                tensor._set(tensor._array, tensor._storage, tensor._requires_grad)
        self._names.forget(number)
        return states

    def _pages(self) -> Iterator[Page]:
        for cache in list(self._caches.values()):
            yield from cache.pages()

    # Memory

    def reclaim(self) -> bool:
        """Evict all pages that are not in use."""
        if not self.lock.acquire(blocking=False):
            return True
        try:
            freed = [each.reclaim() for each in list(self._caches.values())]
            return any(freed)
        finally:
            self.lock.release()

    def held_by_purpose(self) -> dict[str, int]:
        """Return nothing: the pages' storages are counted as tensors."""
        return {}

    def remedy(self, limit: float) -> tuple[int, str]:
        """Return the bytes in memory, and what would make the pages fit in a limit, as text."""
        if not self.lock.acquire(blocking=False):
            return 0, ""
        try:
            self.name_rows()
            pages = [*self._pages()]
            resident = self.resident_nbytes
            window = max((each.bound_nbytes for each in self._caches.values()), default=0)
        finally:
            self.lock.release()
        if not pages:
            return 0, ""
        needed = Counter[int]()
        for page in pages:  # a gradient that there is not is expected
            expected = page.name.role == "parameters"
            needed[page.name.parameter] += (2 if expected else 1) * page.nbytes
            needed[page.name.parameter] -= page.nbytes * (page.name.role == "gradients")
        number, at_once = needed.most_common(1)[0]
        largest = next(each for each in pages if each.name.parameter == number)
        name = ".".join(filter(None, self._names.name(number)))
        text = (
            f"Paged tensors in use hold {memory.format_nbytes(resident)}; operations take them in "
            f"batches of a quarter of window={memory.format_nbytes(window)!r}. The largest "
            f"parameter, {name} of {list(largest.shape)}, takes {memory.format_nbytes(at_once)} "
            "with its gradient and state."
        )
        least = at_once + max(0, memory.allocated() - resident)
        if resident > max(window, at_once):
            text += (
                " More are in use at once, by references that the program or tensors saved for "
                "backward hold, or by one operation: use fewer at a time, or run the forward pass "
                "under offgrad.offload('disk')."
            )
        elif at_once <= limit / 2 < window:
            window = max(at_once, int(limit) // 4)
            text += f" Pass window='{_in_kib(window)}' to offgrad.offload_model."
        elif least > limit:
            text += f" The limit must be at least {_in_kib(least)}."
        return resident, text

    def forget_other_threads(self) -> None:
        """In a forked child: nothing to end, since the lock was held."""


def _in_kib(nbytes: int) -> str:
    return f"{-(-nbytes // 1024)}KiB"


def _can_leave(storage: Storage) -> bool:
    """Return whether all references to the memory are NumPy arrays, which can be counted.

    Smaller memory than the pool's stays: it would cost an I/O and save little.
    """
    if storage.external or storage.inference or storage.shared or storage.successor is not None:
        return False
    root = storage.root
    return (
        root.nbytes >= memory.POOL_THRESHOLD
        and has_no_gaps(root)
        and memory.pool.owns(root)
        and root.base is not None
        and type(root.base.base) is not np.ndarray
    )


def offload_model(model_or_policy: Any, policy: Any = None, **options: Any) -> ModelOffload:
    """Page a model's parameters, gradients and optimizer state; see `ModelOffload`."""
    if not isinstance(model_or_policy, Module):
        if policy is not None:
            raise TypeError(
                "offload_model takes a model and a policy, or a policy alone as a context "
                f"manager, got {type(model_or_policy).__name__} as the model"
            )
        return ModelOffload(model_or_policy, **options)
    if policy is None:
        raise TypeError("offload_model(model, policy) needs a policy, such as 'disk'")
    offload = ModelOffload(policy, **options)
    offload.add_model(model_or_policy)
    return offload
