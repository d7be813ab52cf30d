"""Phrases of PyTorch's errors about modules that code and people match on."""

from typing import Any

import pytest

from tests.known_phrases import Programs, check


def backward(lib: Any, layer: Any, *, requires_grad: bool = True) -> None:
    layer(lib.ones(2, 3, requires_grad=requires_grad)).sum().backward()


def with_pre_hook(result: Any) -> Any:
    """Return a program with a full backward pre-hook that returns some gradients."""

    def run(lib: Any) -> None:
        layer = lib.nn.Linear(3, 2)
        layer.register_full_backward_pre_hook(lambda module, grads: result(lib))
        backward(lib, layer)

    return run


def hook_without_inputs(lib: Any) -> None:
    layer = lib.nn.Linear(3, 2)
    layer.register_full_backward_hook(lambda module, inputs, outputs: (lib.ones(2, 3),))
    backward(lib, layer, requires_grad=False)


def hook_of_a_dict(lib: Any) -> None:
    class Dict(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return {"x": x}

    layer = Dict()
    layer.register_full_backward_hook(lambda module, inputs, outputs: None)
    layer(lib.ones(1, requires_grad=True))


def both_hooks(lib: Any) -> None:
    layer = lib.nn.Linear(3, 2)
    layer.register_full_backward_hook(print)
    layer.register_backward_hook(print)


HOOKS: Programs = {
    "got 0, but expected 1": with_pre_hook(lambda lib: ()),
    "got 2, but expected 1": with_pre_hook(lambda lib: (lib.ones(2, 2), lib.ones(2, 2))),
    "where no input requires gradient": hook_without_inputs,
    "should be a Tensor or a tuple of Tensors": hook_of_a_dict,
    "Cannot use both regular backward hooks and full backward hooks on a single Module": both_hooks,
}


def set_attribute(name: str, value: Any) -> Any:
    return lambda lib: setattr(lib.nn.Linear(2, 2), name, value(lib))


def taken_by_buffer(lib: Any) -> None:
    module = lib.nn.Module()
    module.a = 5
    module.a = lib.nn.Buffer(lib.ones(2))


def buffer_before_init(lib: Any) -> None:
    class Early(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.a = lib.nn.Buffer(lib.ones(2))

    Early()


def load_into_meta(lib: Any) -> None:
    lib.nn.Linear(2, 2, device="meta").load_state_dict(lib.nn.Linear(2, 2).state_dict())


def share_lazy(lib: Any) -> None:
    lib.nn.LazyLinear(2).share_memory()


STATE: Programs = {
    "cannot assign 'torch.FloatTensor' as parameter": set_attribute("weight", lambda m: m.ones(2)),
    "cannot assign 'torch.FloatTensor' object to parameter": lambda lib: lib.nn.Linear(
        2, 2
    ).register_parameter("p", lib.ones(2)),
    "attribute 'a' already exists": taken_by_buffer,
    "cannot assign buffer before Module.__init__() call": buffer_before_init,
    ".to() does not accept copy argument": lambda lib: lib.nn.Linear(2, 2).to("cpu", copy=True),
    "expected torch.Tensor or Tensor-like object from checkpoint but received": lambda lib: (
        lib.nn.Linear(1, 1).load_state_dict({"weight": 5, "bias": lib.ones(1)})
    ),
    "Expected state_dict to be dict-like, got": lambda lib: lib.nn.Linear(1, 1).load_state_dict(2),
    "copying from a non-meta parameter in the checkpoint to a meta": load_into_meta,
    "shape of an uninitialized": lambda lib: lib.nn.LazyLinear(2).weight.shape,
    "share memory on an uninitialized": share_lazy,
    "have uninitialized parameters": lambda lib: lib.nn.utils.weight_norm(lib.nn.LazyLinear(2)),
}


def parametrize(forward: Any, right_inverse: Any = None, *, before: Any = None) -> Any:
    """Return a program that gives a weight [3, 3] a parametrization."""

    def run(lib: Any) -> Any:
        class New(lib.nn.Module):  # type: ignore[misc]
            pass

        New.forward = lambda self, *x: forward(lib, *x)
        if right_inverse is not None:
            New.right_inverse = lambda self, x: right_inverse(lib, x)
        layer = lib.nn.Linear(3, 3)
        register = lib.nn.utils.parametrize.register_parametrization
        if before is not None:
            register(layer, "weight", before(lib))
        return register(layer, "weight", New())

    return run


def same(lib: Any, x: Any) -> Any:
    return x


def assign(forward: Any, first: Any, right_inverse: Any) -> Any:
    """Return a program that assigns a weight, with another right inverse than before."""

    def run(lib: Any) -> None:
        layer = parametrize(forward, first)(lib)
        kind = type(layer.parametrizations.weight[0])
        kind.right_inverse = lambda self, x: right_inverse(lib, x)
        layer.weight = lib.ones(3, 3)

    return run


def identity(lib: Any) -> Any:
    return lib.nn.Identity()


def remove_several(lib: Any) -> None:
    layer = parametrize(lambda lib, a, b: a + b, lambda lib, x: (x / 2, x / 2))(lib)
    lib.nn.utils.parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)


PARAMETRIZATIONS: Programs = {
    "Registering a parametrization may not change the shape of the tensor": parametrize(
        lambda lib, x: x[:1]
    ),
    "Registering a parametrization may not change the dtype of the tensor": parametrize(
        lambda lib, x: x.double()
    ),
    "A parametrization must return a tensor": parametrize(lambda lib, x: 2, before=identity),
    "may not change the shape": parametrize(lambda lib, x: x[:1], before=identity),
    "may not change the dtype": parametrize(lambda lib, x: x.double(), before=identity),
    "right_inverse must return a tensor": parametrize(same, lambda lib, x: (x, x), before=identity),
    "must have the same dtype": parametrize(same, lambda lib, x: x.double(), before=identity),
    "must have the same shape": parametrize(same, lambda lib, x: x[:1], before=identity),
    "Tensor or a Sequence of": parametrize(same, lambda lib, x: 2),
    "of the sequence with type": parametrize(lambda lib, a, b: a, lambda lib, x: (x, 2)),
    "outputs one tensor, it may not change the dtype": parametrize(same, lambda lib, x: x.double()),
    "leave_parametrized=False": remove_several,
    "Expected a matrix or batch of matrices": lambda lib: lib.nn.utils.parametrizations.orthogonal(
        lib.nn.Linear(3, 2), "bias"
    ),
    "Expected n_power_iterations to be positive": lambda lib: (
        lib.nn.utils.parametrizations.spectral_norm(lib.nn.Linear(3, 2), n_power_iterations=0)
    ),
}


def twice(name: str) -> Any:
    def run(lib: Any) -> None:
        function = getattr(lib.nn.utils, name)
        function(function(lib.nn.Linear(2, 2)))

    return run


def tied(lib: Any) -> Any:
    """Return a module whose bias has two names."""
    module = lib.nn.Module()
    module.l1 = lib.nn.Linear(1, 1)
    module.tied_bias = module.l1.bias
    module.register_buffer("buffer", lib.ones(1))
    return module


def call(values: Any, **options: Any) -> Any:
    return lambda lib: lib.func.functional_call(tied(lib), values(lib), (lib.ones(1),), **options)


def clip(lib: Any) -> None:
    parameter = lib.ones(2, requires_grad=True)
    parameter.grad = lib.full((2,), float("nan"))
    lib.nn.utils.clip_grad_norm_(parameter, 1.0, error_if_nonfinite=True)


UTILITIES: Programs = {
    "register two weight_norm hooks": twice("weight_norm"),
    "register two spectral_norm hooks": twice("spectral_norm"),
    "Unexpected key(s): 'extra'.": call(
        lambda lib: {
            **dict(tied(lib).named_parameters()),
            "buffer": lib.ones(1),
            "extra": lib.ones(1),
        },
        strict=True,
    ),
    "Missing key(s): 'buffer', 'l1.bias'": call(
        lambda lib: {"l1.weight": lib.ones(1, 1)}, strict=True, tie_weights=False
    ),
    "functional_call got multiple values for keys ['l1.bias', 'tied_bias']": call(
        lambda lib: {"l1.bias": lib.ones(1), "tied_bias": lib.zeros(1)}
    ),
    "The total norm of order 2.0 for gradients from `parameters` is non-finite": clip,
}

PROGRAMS: Programs = {**HOOKS, **STATE, **PARAMETRIZATIONS, **UTILITIES}


@pytest.mark.parametrize("phrase", PROGRAMS)
def test_phrases(phrase: str) -> None:
    check(PROGRAMS, phrase)
