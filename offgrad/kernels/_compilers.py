"""How Numba compiles loops and their helpers: a helper has machine code only within the loops.

By itself Numba optimises each helper, makes machine code of it, and then does both again in every
loop that calls it. Here a helper is only simplified, so that LLVM sees how small it is when it
inlines, and linked into its callers. In a loop's library helpers are internal: LLVM drops what it
inlined, and no other loop's copy of a helper can take its place, so a loop has the same bits
whether it was just compiled or loaded from the cache.

Importing this module imports numba; `_jit` imports it with the first loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from numba import _dynfunc, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.targetconfig import ConfigStack
from numba.core.typed_passes import BaseNativeLowering, NativeLowering
from numba.core.typing.templates import (
    _OverloadFunctionTemplate,
    infer_global,
    make_intrinsic_template,
    make_overload_template,
)

from offgrad.kernels import _range_driver

EXACT = frozenset({"contract"})
"""Fast arithmetic of helpers; see `_jit`."""

# Numba registers no second pass of a name, and an import that Ctrl-C ends leaves its passes behind.
_import = object()
_SUFFIX = f"native_lowering_{id(_import):x}"


class _LoopLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a loop, with that of its helpers."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Only set the layout: what passes over the loop's function do, those over all repeat."""
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if function.linkage.name == "linkonce_odr" and not function.is_declaration:
                function.linkage = "internal"
        super()._optimize_final_module()


class _LinkedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code that only other libraries link, without machine code of its own.

    Attributes:
        environment: the name in the code, and the object, with which it raises exceptions.
    """

    environment: tuple[str, Any]

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _HelperLibrary(_LinkedLibrary):
    """The code of a helper."""

    def _optimize_final_module(self) -> None:
        """Nothing: the caller's passes optimise it."""


class _CalledLibrary(_LinkedLibrary, _LoopLibrary):
    """The code of a loop that others call, optimised as by itself: it has the same bits there."""


@register_pass(mutates_CFG=True, analysis_only=False)
class _LoopLowering(BaseNativeLowering):  # type: ignore[misc]
    _name = f"loop_{_SUFFIX}"

    @property
    def lowering_class(self) -> Any:
        return Lower

    def run_pass(self, state: Any) -> bool:
        if state.library is None:
            state.library = _LoopLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
            state.library.enable_object_caching()
        changed = bool(super().run_pass(state))
        if not state.flags.no_compile:
            _set_environments(state.library)
        return changed


def _set_environments(library: Any) -> None:
    """Set the environments of a compiled library's helpers."""
    codegen = library.codegen
    for each in library._linking_libraries:
        if isinstance(each, _LinkedLibrary):
            name, environment = each.environment
            if codegen._engine.is_symbol_defined(name):
                codegen.set_env(name, environment)
            _set_environments(each)


class _DrivenLower(Lower):  # type: ignore[misc]
    def create_cpython_wrapper(self, release_gil: bool = False) -> None:
        _range_driver.create_wrapper(self, release_gil)


@register_pass(mutates_CFG=True, analysis_only=False)
class _DrivenLowering(_LoopLowering):
    _name = f"driven_{_SUFFIX}"

    @property
    def lowering_class(self) -> Any:
        return _DrivenLower


@register_pass(mutates_CFG=True, analysis_only=False)
class _HelperLowering(_LoopLowering):
    _name = f"helper_{_SUFFIX}"
    library_class: type[_LinkedLibrary] = _HelperLibrary

    def run_pass(self, state: Any) -> bool:
        library = self.library_class(state.targetctx.codegen(), state.func_id.func_qualname)
        flags, state.library, state.flags = state.flags, library, state.flags.copy()
        state.flags.no_compile = state.flags.no_cpython_wrapper = True
        state.flags.no_cfunc_wrapper = True
        try:
            super().run_pass(state)
        finally:
            state.flags = flags
        compiled = state["cr"]
        fndesc, env = compiled.fndesc, compiled.env
        library.environment = state.targetctx.get_env_name(fndesc), env
        # Numba's key of the code in a table; without an address, as only compiled code calls it.
        key = _dynfunc.make_function(
            fndesc.lookup_module(), fndesc.qualname.split(".")[-1], "", 0, env, (library,)
        )
        state.targetctx.insert_user_function(key, fndesc, [library])
        state["cr"] = _LowerResult(fndesc, compiled.call_helper, cfunc=key, env=env)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _CalledLowering(_HelperLowering):
    _name = f"called_{_SUFFIX}"
    library_class = _CalledLibrary


def _compiler(lowering: type[_LoopLowering]) -> Any:
    """Return Numba's compiler with a last pass of ours."""

    class Compiler(CompilerBase):  # type: ignore[misc]
        def define_pipelines(self) -> list[Any]:
            manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
            manager.passes = [
                (lowering if each is NativeLowering else each, description)
                for each, description in manager.passes
            ]
            manager._finalized = False
            manager.finalize()
            return [manager]

    return Compiler


LOOP, DRIVEN, HELPER, CALLED = map(
    _compiler, (_LoopLowering, _DrivenLowering, _HelperLowering, _CalledLowering)
)
"""Compilers of loops, of loops whose calls threads share (see `_range_driver`), of helpers, and of
loops that others call."""

_OPTIONS = {"fastmath": set(EXACT), "error_model": "numpy", "pipeline_class": HELPER}


class _Helper(_OverloadFunctionTemplate):  # type: ignore[misc]
    """A helper, compiled once for types of arguments: it has flags of its own, not its callers'."""

    def _get_impl(self, args: Any, kws: Any) -> Any:
        flags = Flags()
        flags.nrt = True  # arrays have counts
        with ConfigStack().enter(flags):
            return super()._get_impl(args, kws)


def overload(function: Callable[..., Any], choose: Callable[..., Any]) -> None:
    """Let loops call what `choose` returns for the types of arguments by the name of `function`."""
    template = make_overload_template(function, choose, _OPTIONS, False, "never")
    infer_global(function, types.Function(type(template.__name__, (_Helper, template), {})))


def intrinsic(function: Callable[..., Any], signature: Any, emit: Callable[..., Any]) -> None:
    """Let loops call what `emit` builds by the name of `function`.

    Args:
        function: only its name and parameters count.
        signature: Numba's, of the result and the arguments.
        emit: called with Numba's context, LLVM's builder, the signature and the values; returns
            the result.
    """

    def define(*_: Any) -> Any:
        return signature, emit

    own = inspect.Parameter("typing_context", inspect.Parameter.POSITIONAL_ONLY)
    parameters = inspect.signature(function).parameters.values()
    define.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
    template = make_intrinsic_template(function, define, function.__name__)
    infer_global(function, types.Function(template))
