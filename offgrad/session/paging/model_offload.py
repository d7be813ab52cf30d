"""ModelOffload: parameters, gradients and optimizer state under a policy."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np
from offgrad_storage import AbstractArrayStore
from offgrad_storage.interrupts import MaskedLock, masked

from offgrad import memory
from offgrad.autograd.tensor_base import drop_array, metadata, wrap
from offgrad.memory import Storage, turn_paged, turn_resident
from offgrad.memory.forks import forkables
from offgrad.nn import Module, Parameter
from offgrad.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from offgrad.nn.parameter import is_lazy
from offgrad.policies import ByModule, Keep, Placement, Policy, SaveContext, Spill, Store, as_policy
from offgrad.session.ledger import LedgerRow, PageLedger
from offgrad.session.open_stores import OpenStores
from offgrad.session.paging.page import Page, PageName, measure_references
from offgrad.session.paging.page_cache import PageCache
from offgrad.session.paging.use_order import UseOrder

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.handles import RemovableHandle

_OPS = {"parameters": "Parameter", "gradients": "Gradient", "optimizer state": "State"}
"""The op of each role, in the facts that policies get and in the ledger."""

_MIN_TO_PRUNE = 64


class Placer(NamedTuple):
    """Places gradients, copies and state of one parameter; `Storage.placer` of its memory."""

    owner: "ModelOffload"
    number: int

    def __call__(self, tensor: Any, role: str) -> None:
        self.owner.place_alike(self.number, tensor, role)


class ModelOffload:
    """Pages parameters, and with each its gradient and the optimizer's state of it.

    As a context manager it pages the parameters that modules register inside the block, as soon as
    they do: the model is never in memory as a whole.

    Attributes:
        policy: decides for parameters; `gradients` and `state` for the others.
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
        self.policy = as_policy(policy)
        self._policies: dict[str, Policy] = {
            "parameters": self.policy,
            "gradients": self.policy if gradients is None else as_policy(gradients),
            "optimizer state": self.policy if state is None else as_policy(state),
        }
        self._window_nbytes = memory.parse_nbytes(window)
        self.lock = MaskedLock(reentrant=True)
        self.is_writing = False
        self._order = UseOrder()
        self._stores = OpenStores(directory)
        self._caches: dict[Store | Spill, PageCache] = {}
        self._numbers = itertools.count()
        self._states: defaultdict[int, int] = defaultdict(int)
        self._names: dict[int, tuple[str, str]] = {}  # module and name of a parameter, by number
        self._parameters: dict[int, ref[Tensor]] = {}
        self._modules: list[ref[Module]] = []
        self._max_known = _MIN_TO_PRUNE
        self._row_numbers: dict[int, int] = {}  # of copies: the parameter in whose rows they count
        self._rows: dict[tuple[int, str], LedgerRow] = {}
        self._registration: list[RemovableHandle] = []
        measure_references()
        memory.register_reclaimable(self)
        forkables.add(self)

    def __enter__(self) -> "ModelOffload":
        for policy in self._policies.values():
            if isinstance(policy, ByModule):
                raise ValueError(
                    "inside the block that makes a model its modules have no names yet, so a "
                    "mapping by module name cannot apply: make the model, then call "
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
        for _ in range(2):
            self._registration.pop().remove()

    def __repr__(self) -> str:
        held = memory.format_nbytes(self.resident_nbytes)
        total = memory.format_nbytes(sum(each.nbytes for each in self._pages()))
        return f"<ModelOffload {self.policy}: {held} of {total} in memory>"

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
        self._name_parameters()
        for (number, _), row in self._rows.items():
            row.module, row.slot = self._names.get(number, (row.module, row.slot))

    # Paging

    def add_model(self, model: Module) -> None:
        """Page the parameters of a model, and the gradients that they have."""
        names = {id(each): name for name, each in model.named_parameters()}
        self._modules.append(ref(model))
        for module_name, module in model.named_modules():
            for name, param in module._parameters.items():
                if param is not None and names.get(id(param), "").rpartition(".")[2] == name:
                    self._take_over(param, module_name, name)

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
            self._modules.append(ref(module))
            self._add_parameter(param, type(module).__name__, name)

    def _note_parent(self, module: Module, name: str, child: Any) -> None:
        """Note a module whose name and place name the parameters of its children."""
        self._prune()
        self._modules.append(ref(module))

    def _add_parameter(
        self, param: Any, module: str, name: str, copied_from: int | None = None
    ) -> None:
        if param._storage.placer is None:
            self._prune()
            number = next(self._numbers)
            if copied_from is not None:
                self._row_numbers[number] = self._row_numbers.get(copied_from, copied_from)
            self._names[number] = module, name
            self._parameters[number] = ref(param)
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
            known = self._parameters.get(number)
            if known is not None and known() is tensor:  # other memory was set as its data
                self._add(tensor, PageName(number, role))
            else:
                self._add_parameter(tensor, *self._names.get(number, ("", "")), number)
        elif role == "gradients":
            self._add(tensor, PageName(number, role))
        elif role in self._policies:
            self._states[number] += 1
            self._add(tensor, PageName(number, role, self._states[number]))

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
        placement = self._placement(tensor, name)
        if name.role == "parameters":
            storage.placer = Placer(self, name.parameter)
            storage.max_batch_nbytes = self._window_nbytes // 2  # of its gradient and state
        if isinstance(placement, Keep) or not _can_leave(storage):
            return
        cache = self._cache(placement)
        storage.max_batch_nbytes = cache.bound_nbytes // 2
        row_key = self._row_numbers.get(name.parameter, name.parameter), name.role
        row = self._rows.get(row_key)
        if row is None:
            module, slot = self._names.get(name.parameter, ("", ""))
            row = LedgerRow(op=_OPS[name.role], slot=slot, module=module)
            self._rows[row_key] = row
        row.saves += 1
        row.logical_nbytes += storage.nbytes
        page = Page(name, storage, cache, row)
        with masked:
            turn_paged(storage, page)
            drop_array(tensor)
            cache.add(page)

    def _placement(self, tensor: Any, name: PageName) -> Placement:
        policy = self._policies[name.role]
        module, slot = self._names.get(name.parameter, ("", ""))
        array = metadata(tensor)
        context = SaveContext(
            op=_OPS[name.role],
            slot=slot,
            module=module,
            dtype=array.dtype,
            shape=array.shape,
            nbytes=array.nbytes,
            is_parameter=False,
            is_output=False,
            storage=tensor._storage.uid,
            step=0,
        )
        if isinstance(policy, ByModule):
            rule = policy.find(module)
            policy = Keep() if rule is None else rule.policy
        placement = policy.place(context) or Keep()
        if isinstance(placement, Keep):
            return placement
        if not isinstance(placement, Store | Spill):
            raise ValueError(
                f"{name.role} cannot be recomputed: a policy for them returns Keep, Store or "
                f"Spill, but {policy} returned {placement} for {context}"
            )
        if not placement.lossless and name.role != "optimizer state":
            raise ValueError(
                f"{name.role} must come back bit for bit, but {policy} rounds: name a lossless "
                "store, and pass state= for optimizer state alone"
            )
        return placement

    def _cache(self, placement: Any) -> PageCache:
        cache = self._caches.get(placement)
        if cache is None:
            store, bound = placement, self._window_nbytes
            if isinstance(placement, Spill):
                store = placement.store
                bound = bound if placement.nbytes is None else placement.nbytes
            opened = partial(self._open, store)
            is_strict = isinstance(placement, Spill)
            cache = PageCache(self, self._order, self.lock, opened, bound, is_strict)
            self._caches[placement] = cache
        return cache

    def _open(self, placement: Store) -> AbstractArrayStore:
        return self._stores.of(placement)

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
        self._forget(number)
        return states

    def _forget(self, number: int) -> None:
        for known in (self._names, self._parameters, self._states, self._row_numbers):
            known.pop(number, None)

    def _prune(self) -> None:
        """Now and then, forget parameters and modules that have died."""
        if max(len(self._parameters), len(self._modules)) < self._max_known:
            return
        for number in [each for each, known in self._parameters.items() if known() is None]:
            self._forget(number)
        self._modules = [each for each in self._modules if each() is not None]
        live = max(len(self._parameters), len(self._modules))
        self._max_known = max(_MIN_TO_PRUNE, 2 * live)

    def _pages(self) -> Iterator[Page]:
        for cache in list(self._caches.values()):
            yield from cache.pages()

    def _live_parameters(self) -> "dict[int, Tensor]":
        live = {number: each() for number, each in list(self._parameters.items())}
        return {number: param for number, param in live.items() if param is not None}

    def _name_parameters(self) -> None:
        """Replace the class names of modules by qualified names, now that modules have parents."""
        modules = [each for reference in self._modules if (each := reference()) is not None]
        children = {id(each) for module in modules for each in module.children()}
        roots = [each for each in modules if id(each) not in children]
        names: dict[int, tuple[str, str]] = {}
        for root in roots:
            for name, param in root.named_parameters():
                module, _, slot = name.rpartition(".")
                names.setdefault(id(param), (module, slot))
        for number, tensor in self._live_parameters().items():
            if id(tensor) in names:
                self._names[number] = names[id(tensor)]

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

    def forget_other_threads(self) -> None:
        """In a forked child: nothing to end, since the lock was held."""


def _can_leave(storage: Storage) -> bool:
    """Return whether all references to the memory are NumPy arrays, which can be counted.

    Smaller memory than the pool's stays: it would cost an I/O and save little.
    """
    if storage.external or storage.inference or storage.shared or storage.successor is not None:
        return False
    root = storage.root
    return (
        root.nbytes >= memory.POOL_THRESHOLD
        and bool(root.flags.c_contiguous)
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
