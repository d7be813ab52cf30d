"""Lines of PyTorch programs about what tensors are, and what they convert to."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad


def X(m: Any) -> Any:
    return m.arange(6.0).view(2, 3)


NAMES = ["float", "double", "half", "bfloat16", "long", "int", "short", "char", "byte", "bool"]


def _set(m: Any, value: Any) -> Any:
    x = m.ones(2, requires_grad=True)
    x.data = value
    return x, x.is_leaf


CALLS: dict[str, Callable[[Any], Any]] = {
    "type": lambda m: [m.zeros(1, dtype=each).type() for each in (m.half, m.bfloat16, m.cfloat)],
    "type of integers": lambda m: (m.ones(1).bool().type(), m.zeros(1, dtype=m.uint16).type()),
    "type by name": lambda m: X(m).type("torch.DoubleTensor"),
    "type by class": lambda m: X(m).type(m.LongTensor),
    "type by dtype": lambda m: X(m).type(m.int),
    "type of nothing": lambda m: X(m).type("DoubleTensor"),
    "type cuda": lambda m: X(m).type("torch.cuda.FloatTensor"),
    "FloatTensor": lambda m: (m.FloatTensor([1, 2]), m.FloatTensor(2, 3).shape, m.FloatTensor()),
    "LongTensor": lambda m: (m.LongTensor([1.5]), m.LongTensor(np.array([1, 2])), m.LongTensor),
    "LongTensor of another": lambda m: m.LongTensor(X(m)),
    "isinstance": lambda m: (isinstance(X(m), m.FloatTensor), isinstance(X(m), m.LongTensor)),
    "FloatTensor.dtype": lambda m: m.FloatTensor.dtype,
    "Tensor": lambda m: (m.Tensor([1, 2]), m.Tensor(2, 3).shape, m.Tensor(m.Size([2])).shape),
    "Tensor of a shape": lambda m: m.Tensor((2, 3)),
    "Tensor of a tensor": lambda m: m.Tensor(X(m).long()),
    "Tensor of a number": lambda m: m.Tensor(1.5),
    "Tensor shares": lambda m: [m.Tensor(x).data_ptr() == x.data_ptr() for x in (X(m),)],
    "conversions": lambda m: [getattr(X(m), name)() for name in NAMES],
    "to positional": lambda m: X(m).to("cpu", m.float64, False, True),
    "to a tensor": lambda m: X(m).to(m.ones(1, dtype=m.int8)),
    "to itself": lambda m: [x.to(m.float32) is x for x in (X(m),)],
    "to a copy": lambda m: [x.to(x.dtype, copy=True) is x for x in (X(m),)],
    "to cuda": lambda m: X(m).to("cuda", m.float64),
    "cuda": lambda m: X(m).cuda(),
    "layout": lambda m: (X(m).layout, m.channels_last, m.contiguous_format, m.sparse_coo),
    "kinds": lambda m: [type(each).__name__ for each in (X(m).layout, m.channels_last)],
    "place": lambda m: (X(m).is_cpu, X(m).is_cuda, X(m).is_sparse, X(m).is_meta, X(m).is_mps),
    "get_device": lambda m: (X(m).get_device(), m.get_device(X(m)), X(m).is_pinned()),
    "pin_memory": lambda m: X(m).pin_memory(),
    "sizes": lambda m: (X(m).ndimension(), X(m).nelement(), m.numel(X(m)), X(m).dim_order()),
    "is": lambda m: (m.is_tensor(X(m)), m.is_storage(X(m).storage()), m.is_complex(X(m))),
    "is_nonzero": lambda m: (m.tensor(2.0).is_nonzero(), m.is_nonzero(m.tensor([0]))),
    "is_nonzero of many": lambda m: X(m).is_nonzero(),
    "is_signed": lambda m: (X(m).is_signed(), m.is_signed(X(m).byte()), m.is_neg(X(m))),
    "is_same_size": lambda m: (X(m).is_same_size(X(m).t()), m.is_same_size(X(m), X(m))),
    "is_set_to": lambda m: [(x.is_set_to(x[:]), x.is_set_to(x[:1])) for x in (X(m),)],
    "in": lambda m: (5 in X(m), m.tensor([0.0, 1, 2]) in X(m), 7 in X(m)),
    "in, another type": lambda m: "a" in X(m),
    "reversed": lambda m: (reversed(X(m)), list(reversed(m.arange(2))), reversed(m.tensor(1))),
    "shifts": lambda m: (m.tensor([1, 2]) << 1, 1 << m.tensor([1, 2]), m.tensor([8]) >> 2),
    "shifts of floats": lambda m: X(m) << 1,
    "positive": lambda m: +X(m),
    "positive bool": lambda m: +m.tensor([True]),
    "numpy's functions": lambda m: (np.sin(X(m)), np.add(X(m), 1), np.maximum(X(m), 1)),
    "numpy's operators": lambda m: (np.add(np.ones(3), X(m)), X(m) + np.ones(3)),
    "numpy first": lambda m: np.ones(3) * X(m),
    "numpy compared": lambda m: np.ones(3) == m.ones(3),
    "numpy's number": lambda m: (np.float64(2) * X(m), np.float32(2) - X(m), X(m) / np.int64(2)),
    "numpy's stack": lambda m: (np.stack([X(m), X(m)]).shape, np.allclose(X(m), X(m))),
    "numpy's isnan": lambda m: np.isnan(X(m)),
    "numpy with grad": lambda m: np.sin(m.ones(2, requires_grad=True)),
    "as an array": lambda m: (np.array(X(m)), np.asarray(X(m), dtype=np.int32).dtype),
    "numpy force": lambda m: m.ones(2, requires_grad=True).numpy(force=True),
    "dlpack": lambda m: (m.from_dlpack(np.arange(3)), np.from_dlpack(X(m))),
    "dlpack of grad": lambda m: m.ones(1, requires_grad=True).__dlpack__(),
    "dlpack of a stream": lambda m: X(m).__dlpack__(stream=1),
    "range as index": lambda m: (m.arange(10)[range(3)], X(m)[range(2), 1]),
    "lists as index": lambda m: (X(m)[[0, 1], [1, 2]], X(m)[[True, False]], X(m)[[]].shape),
    "copy": lambda m: [copy.copy(x).data_ptr() == x.data_ptr() for x in (X(m),)],
    "pickle of a result": lambda m: pickle.loads(pickle.dumps(m.ones(2, requires_grad=True) * 2)),
    "data of another shape": lambda m: _set(m, m.ones(3)),
    "data of another dtype": lambda m: _set(m, m.ones(2).double()),
    "data of integers": lambda m: _set(m, m.ones(2).long()),
    "grad of a result": lambda m: (m.ones(2, requires_grad=True) * 2).grad,
    "new": lambda m: (X(m).new([1, 2]), X(m).new(2, 3).shape, X(m).new(), X(m).long().new([1])),
    "resize_": lambda m: (X(m).clone().resize_(2, 2), X(m).resize_(3, 4)[0]),
    "resize_ with grad": lambda m: m.ones(2, requires_grad=True).resize_(3),
    "resize_as_": lambda m: X(m).clone().resize_as_(m.ones(2)),
    "set_": lambda m: (X(m).set_(m.ones(2)), X(m).set_()),
    "set_ to a storage": lambda m: X(m).set_(m.arange(6.0).untyped_storage(), 1, (2, 2), (2, 1)),
    "set_ to all": lambda m: m.ones(1).set_(X(m).storage()),
    "set_ to another dtype": lambda m: m.ones(1).set_(m.ones(2).long()),
    "as_strided_": lambda m: X(m).clone().as_strided_((2, 2), (1, 1)),
    "in-place views by name": lambda m: (
        X(m).unsqueeze_(dim=0).squeeze_(dim=0).transpose_(0, dim1=1)
    ),
    "storage": lambda m: (X(m).storage(), X(m).long().untyped_storage().nbytes()),
    "storage sizes": lambda m: [
        (s.size(), len(s), s.nbytes(), s[0], s.device, s.element_size())
        for s in (X(m).untyped_storage(),)
    ],
    "storage shared": lambda m: [
        x[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for x in (X(m),)
    ],
    "storage_offset": lambda m: (X(m)[1].storage_offset(), X(m)[1, 1:].storage_offset()),
    "resize of a storage": lambda m: X(m).untyped_storage().resize_(24).nbytes(),
    "share_memory_": lambda m: (X(m).is_shared(), X(m).share_memory_().is_shared()),
    "generator": lambda m: [
        (g.device, g.initial_seed(), g.get_state().dtype, g.manual_seed(3).initial_seed())
        for g in (m.Generator(),)
    ],
    "generator on cuda": lambda m: m.Generator("cpu").set_state(m.zeros(3)),
    "seeds": lambda m: (m.manual_seed(-1).initial_seed(), m.initial_seed()),
    "bool of many": lambda m: bool(X(m)),
    "item of many": lambda m: X(m).item(),
    "float of many": lambda m: float(X(m)),
    "index of a float": lambda m: [1, 2][m.tensor(1.0)],
    "len of none": lambda m: len(m.tensor(1)),
    "iterate none": lambda m: list(m.tensor(1)),
    "float8": lambda m: (m.tensor([1, 2.1]).to(m.float8_e5m2), m.ones(1).to(m.float8_e4m3fn)),
    "float8 back": lambda m: m.tensor([1, 2.1]).to(m.float8_e4m3fn).float(),
    "float8 type": lambda m: m.ones(1).to(m.float8_e4m3fn).type(),
    "removed": lambda m: m.eig(X(m)),
    "removed method": lambda m: X(m).solve(X(m)),
    "sparse": lambda m: (X(m).sparse_dim(), X(m).dense_dim(), X(m).to_dense()),
    "indices of no sparse tensor": lambda m: X(m).indices(),
    "resize": lambda m: (X(m).resize(3, 2), X(m).resize_as(m.ones(6))),
    "storage_type": lambda m: (X(m).storage_type(), X(m).long().storage_type()),
    "FloatStorage": lambda m: (m.FloatStorage([1, 2]), m.LongStorage(3).size()),
    "old attributes": lambda m: (X(m).name, X(m).volatile, X(m).grad_dtype, X(m)._backward_hooks),
    "const_data_ptr": lambda m: [x.const_data_ptr() == x.data_ptr() for x in (X(m),)],
    "module_load": lambda m: (X(m).module_load(m.ones(2, 3)), X(m).module_load(X(m), True)),
    "float_power_": lambda m: X(m).double().float_power_(2),
    "ipu": lambda m: X(m).ipu(),
    "random_ of nothing": lambda m: m.ones(3).random_(3, 3),
    "geometric_ of 2": lambda m: m.ones(3).geometric_(2),
    "cauchy_ of integers": lambda m: m.ones(3).long().cauchy_(),
    "uniform_ backwards": lambda m: m.ones(3).uniform_(1, 0),
    "normal_ negative": lambda m: m.ones(3).normal_(0, -1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_on_both(same: Any, call: Callable[[Any], Any]) -> None:
    same(call)


def test_reading_the_gradient_of_a_result_warns() -> None:
    x = offgrad.ones(2, requires_grad=True)
    y = x * 2
    with pytest.warns(UserWarning, match="is not a leaf"):
        assert y.grad is None
    y.retain_grad()
    assert y.grad is None
    assert x.grad is None


def test_a_recorded_backward_pass_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offgrad.autograd.gradients, "_has_warned_of_cycles", False)
    x = offgrad.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="create_graph=True makes a reference cycle"):
        (x * x).sum().backward(create_graph=True)
    (x * x).sum().backward(create_graph=True)


def test_set_checks_its_bounds() -> None:
    x = offgrad.arange(6.0)
    with pytest.raises(RuntimeError, match="out of bounds"):
        offgrad.ones(1).set_(x.storage(), 3, (2, 3))
    with pytest.raises(RuntimeError, match="not resizable"):
        x.untyped_storage().resize_(100)


def test_random_fills_have_their_distributions() -> None:
    offgrad.manual_seed(0)
    x = offgrad.empty(20000, dtype=offgrad.float64)
    assert abs(x.log_normal_(0, 0.5).log().mean().item()) < 0.02
    assert abs(x.geometric_(0.25).mean().item() - 4) < 0.1
    assert abs(x.cauchy_(1, 2).median().item() - 1) < 0.1
    assert abs(x.exponential_(2).mean().item() - 0.5) < 0.02
    n = offgrad.empty(2000, dtype=offgrad.int64)
    assert set(n.random_(2, 5).tolist()) == {2, 3, 4}
    assert set(n.random_(2).tolist()) == {0, 1}
    assert n.random_().min().item() >= 0
    assert offgrad.empty(100, dtype=offgrad.uint8).random_().max().item() > 100


def test_memory_of_a_tensor_is_shared_by_dlpack_and_numpy() -> None:
    x = offgrad.arange(3.0)
    y = np.from_dlpack(x)
    z = offgrad.utils.dlpack.from_dlpack(offgrad.to_dlpack(x))
    x[0] = 5
    assert (y[0], z[0].item()) == (5, 5)
    assert z.data_ptr() == x.data_ptr()
    z[1] = 7
    assert x.tolist() == [5, 7, 2]


def test_states_of_generators_go_back() -> None:
    generator = offgrad.Generator().manual_seed(5)
    offgrad.rand(3, generator=generator)
    state = generator.get_state()
    clone = generator.clone_state()
    first = offgrad.rand(3, generator=generator).tolist()
    assert offgrad.rand(3, generator=clone).tolist() == first
    generator.set_state(state)
    assert offgrad.rand(3, generator=generator).tolist() == first
    copied = pickle.loads(pickle.dumps(clone))
    assert copied.get_state().tolist() == clone.get_state().tolist()
    with pytest.raises(RuntimeError, match="wrong size"):
        generator.set_state(offgrad.zeros(3, dtype=offgrad.uint8))


def test_subclasses_keep_their_class() -> None:
    class Named(offgrad.Tensor):
        def __new__(cls, data: Any, name: str) -> Any:
            made = offgrad.Tensor._make_subclass(cls, data)
            made.name = name
            return made

        def __init__(self, data: Any, name: str) -> None:
            pass

    class Plain(offgrad.Tensor):
        pass

    x: Any = Named(offgrad.ones(2), name="x")
    assert (x.name, x.tolist(), type(copy.deepcopy(x))) == ("x", [1, 1], Named)
    assert repr(Plain([1, 2])) == "Plain([1., 2.])"
    y = offgrad.ones(2, requires_grad=True)
    z = (y * 2).as_subclass(Plain)
    assert isinstance(z, Plain)
    z.sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [2, 2]
    with pytest.raises(TypeError, match="subclass"):
        y.as_subclass(list)


AXES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda m: (X(m).sum(axis=0), m.sum(X(m), axis=1, keepdims=True)),
    "mean": lambda m: (X(m).mean(axis=-1, keepdims=True), m.mean(X(m), axis=(0, 1))),
    "extrema": lambda m: (
        X(m).max(axis=1).values,
        X(m).argmin(axis=0, keepdims=True),
        m.amax(X(m), axis=1),
    ),
    "joining": lambda m: (m.cat([X(m), X(m)], axis=1), m.stack([X(m), X(m)], axis=0).shape),
    "scans": lambda m: (X(m).cumsum(axis=0), X(m).cumprod(axis=1)),
    "spread": lambda m: (X(m).std(axis=0), X(m).var(axis=1, keepdims=True)),
    "truth": lambda m: ((X(m) > 0).all(axis=1), (X(m) > 0).any(axis=0)),
    "twice": lambda m: X(m).sum(dim=0, axis=0),
}


@pytest.mark.parametrize("call", AXES.values(), ids=AXES)
def test_numpys_names_of_arguments(same: Any, call: Callable[[Any], Any]) -> None:
    same(call)


def failing(call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError):
        call()


def masked_attention(m: Any, attn_dtype: Any, padding_dtype: Any) -> None:
    x = m.ones(3, 1, 4)
    padding = m.zeros(1, 3, dtype=padding_dtype)
    m.nn.MultiheadAttention(4, 2)(x, x, x, padding, attn_mask=m.zeros(3, 3, dtype=attn_dtype))


WARNINGS: dict[str, Callable[[Any], Any]] = {
    "T of a vector": lambda m: m.ones(3).T,
    "T of a matrix": lambda m: m.ones(3, 2).T,
    "meshgrid": lambda m: m.meshgrid(m.arange(2), m.arange(3)),
    "meshgrid ij": lambda m: m.meshgrid(m.arange(2), m.arange(3), indexing="ij"),
    "tensor of a tensor": lambda m: m.tensor(m.ones(2)),
    "as_tensor of a tensor": lambda m: m.as_tensor(m.ones(2)),
    "std of one": lambda m: m.ones(1).std(),
    "std of two": lambda m: m.ones(2, 1).std(0),
    "biased var of one": lambda m: m.ones(1).var(unbiased=False),
    "mse_loss that broadcasts": lambda m: m.nn.functional.mse_loss(m.ones(2, 1), m.ones(2)),
    "mse_loss that fails to broadcast": lambda m: failing(
        lambda: m.nn.functional.mse_loss(m.ones(2, 3), m.ones(2, 4))
    ),
    "bytes": lambda m: m.frombuffer(b"12", dtype=m.uint8),
    "a bytearray": lambda m: m.frombuffer(bytearray(b"12"), dtype=m.uint8),
    "a constant array": lambda m: m.from_numpy(np.broadcast_to(np.ones(1), 3)),
    "where of uint8": lambda m: m.where(m.ones(2, dtype=m.uint8), m.ones(2), m.ones(2)),
    "index of uint8": lambda m: m.ones(2)[m.ones(2, dtype=m.uint8)],
    "cross": lambda m: m.cross(m.ones(3), m.ones(3)),
    "cross along": lambda m: m.cross(m.ones(3), m.ones(3), dim=0),
    "soft_margin_loss that broadcasts": lambda m: m.nn.functional.soft_margin_loss(
        m.ones(2, 3), m.ones(3)
    ),
    "soft_margin_loss that does not": lambda m: failing(
        lambda: m.nn.functional.soft_margin_loss(m.ones(2, 1), m.ones(2))
    ),
    "default type": lambda m: m.set_default_tensor_type(m.FloatTensor),
    "cholesky": lambda m: m.cholesky(m.eye(2)),
    "qr": lambda m: m.qr(m.eye(2)),
    "masks of two dtypes": lambda m: masked_attention(m, m.float32, m.bool),
    "masks of one dtype": lambda m: masked_attention(m, m.bool, m.bool),
    "encoder with masks of two dtypes": lambda m: m.nn.TransformerEncoderLayer(4, 2)(
        m.ones(3, 1, 4), m.zeros(3, 3), m.zeros(1, 3, dtype=m.bool)
    ),
    "decoder with masks of two dtypes": lambda m: m.nn.TransformerDecoderLayer(4, 2)(
        *(m.ones(3, 1, 4),) * 2, m.zeros(3, 3), None, m.zeros(1, 3, dtype=m.bool)
    ),
    "mean of kl_div": lambda m: m.nn.functional.kl_div(m.ones(2), m.ones(2)),
    "sum of kl_div": lambda m: m.nn.functional.kl_div(m.ones(2), m.ones(2), reduction="sum"),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_warnings_come_where_torch_warns(name: str) -> None:
    torch = pytest.importorskip("torch")
    kinds = []
    torch.set_warn_always(True)
    for m in (offgrad, torch):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            WARNINGS[name](m)
        kinds.append([each.category for each in caught])
    torch.set_warn_always(False)
    assert kinds[0] == kinds[1]
