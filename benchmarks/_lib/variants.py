"""The context of a step's forward pass: a policy of offgrad, or PyTorch's counterpart.

``default`` is neither a policy nor hooks. Variants of torch are ``keep``, which is the same,
``disk`` (the example of PyTorch's documentation: torch.save writes each saved tensor to a file),
``checkpoint`` (of each block, non-reentrant) and ``naive`` (hooks that count the bytes passed to
them). offgrad has the last two, ``saved`` (keep, with unique bytes counted without parameters),
every text that `offgrad.offload` accepts, and ``checkpoint`` before such a text: the policy then
applies to the tensors that checkpoints save.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any


def checkpoint_blocks(lib: Any, model: Any) -> None:
    """Make each block of a model of `lib` a checkpoint: backward recomputes it."""
    checkpoint = import_module(f"{lib.__name__}.utils.checkpoint").checkpoint
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


class Variants:
    """The variants of one framework, for one model.

    Args:
        lib: the framework.
        model: a model with ``blocks``.
        folder: where stores and hooks write.
    """

    def __init__(self, lib: Any, model: Any, folder: str) -> None:
        self._lib, self._model, self._folder = lib, model, folder
        self._sessions: dict[str, Any] = {}
        self._parameters = _ParameterCounter()
        self._packed_nbytes = self._file_nbytes = 0

    def context(self, name: str) -> AbstractContextManager[Any]:
        """Return the context of a forward pass under the variant `name`."""
        if name == "default":
            return nullcontext()
        if name == "naive":
            return self._hooks(self._count, lambda tensor: tensor)
        if name.startswith("checkpoint"):
            return self._checkpoint(name.removeprefix("checkpoint").strip() or None)
        if self._lib.__name__ == "torch":
            return nullcontext() if name == "keep" else self._torch_disk()
        return self._session(name)

    def _session(self, name: str) -> AbstractContextManager[Any]:
        if name not in self._sessions:
            policy = [self._parameters, "keep"] if name == "saved" else name
            self._sessions[name] = self._lib.offload(policy, directory=self._folder)
        session: AbstractContextManager[Any] = self._sessions[name]
        return session

    def figures(self, name: str) -> dict[str, Any]:
        """Return the variant's counts so far."""
        if name == "naive":
            return {"packed_nbytes": self._packed_nbytes}
        if self._lib.__name__ == "torch":
            return {"written_nbytes": self._file_nbytes if name == "disk" else 0}
        name = name.removeprefix("checkpoint ")
        if name not in self._sessions:
            return {"written_nbytes": 0}
        ledger = self._sessions[name].ledger
        figures = {
            key: getattr(ledger, key)
            for key in ("unique_nbytes", "written_nbytes", "read_nbytes", "stall_seconds")
        }
        if name == "saved":
            figures["unique_nbytes"] -= self._parameters.unique_nbytes
        return figures

    def _count(self, tensor: Any) -> Any:
        self._packed_nbytes += tensor.nbytes
        return tensor

    def _hooks(self, pack: Any, unpack: Any) -> AbstractContextManager[Any]:
        hooks: AbstractContextManager[Any] = self._lib.autograd.graph.saved_tensors_hooks(
            pack, unpack
        )
        return hooks

    def _torch_disk(self) -> AbstractContextManager[Any]:
        def pack(tensor: Any) -> _File:
            file = _File(self._folder)
            self._lib.save(tensor, file.path)
            self._file_nbytes += os.path.getsize(file.path)
            return file

        return self._hooks(pack, lambda file: self._lib.load(file.path))

    @contextmanager
    def _checkpoint(self, policy: str | None) -> Iterator[None]:
        checkpoint_blocks(self._lib, self._model)
        try:
            with nullcontext() if policy is None else self._session(policy):
                yield
        finally:
            for block in self._model.blocks:
                del block.forward


class _File:
    """A file that is removed with the last reference to it."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, str(uuid.uuid4()))

    def __del__(self) -> None:
        os.remove(self.path)


class _ParameterCounter:
    """A policy without answers that counts saved parameters, each once per step."""

    def __init__(self) -> None:
        self.unique_nbytes = 0
        self._seen: set[tuple[int, int]] = set()

    def place(self, context: Any) -> None:
        """Count a parameter."""
        key = context.step, context.storage
        if context.is_parameter and key not in self._seen:
            self._seen.add(key)
            self.unique_nbytes += context.nbytes
