"""Forward and backward passes in many orders over one graph or several."""

from typing import Any

from offgrad.autograd import Function
from tests.session.graphs import Bits, Offload, bits, gradient, normal


def retained(offload: Offload) -> Bits:
    """Three backwards through one graph."""
    x, w = normal(1, 8, 8), normal(2, 8, 8)
    with offload():
        y = ((x @ w).tanh() @ w.t()).exp()
        loss = (y * y).mean()
    loss.backward(retain_graph=True)
    first = bits(x.grad, w.grad)
    loss.backward(retain_graph=True)
    loss.backward()
    return first + bits(x.grad, w.grad)


def partial(offload: Offload) -> Bits:
    """Parts of a graph, by `inputs=`, in three backwards."""
    a, b, c = normal(1, 8, 8), normal(2, 8, 8), normal(3, 8, 8)
    with offload():
        left = (a @ b).exp()
        right = (b @ c).sin()
        loss = (left * right).tanh().sum()
    loss.backward(inputs=[c], retain_graph=True)
    found = bits(a.grad, b.grad, c.grad)
    loss.backward(inputs=[a, left], retain_graph=True)
    found += bits(a.grad, b.grad, c.grad, left.grad)
    loss.backward(inputs=[b])
    return found + bits(a.grad, b.grad, c.grad)


def shared_parts(offload: Offload) -> Bits:
    """Several losses over one trunk, with backwards in another order than the forwards."""
    x, w = normal(1, 8, 8), normal(2, 8, 8)
    with offload():
        trunk = (x @ w).tanh()
        heads = [(trunk * (k + 1)).exp().sum() for k in range(3)]
    found: Bits = []
    for head in (heads[2], heads[0], heads[1]):
        head.backward(retain_graph=True)
        found += bits(head, x.grad, w.grad)
    found += bits(*gradient([heads[0], heads[2]], [trunk, x]))
    return found


def several_forwards(offload: Offload) -> Bits:
    """Four forwards in separate sessions, then one backward through three of them."""
    x, w = normal(1, 40, 40), normal(2, 40, 40)
    losses = []
    for k in range(4):
        with offload():
            losses.append(((x * (k + 1)) @ w).sigmoid().square().sum())
    (losses[3] + losses[0] + losses[1]).backward()
    return bits(x.grad, w.grad, losses[2])


def dropped(offload: Offload) -> Bits:
    """A graph without a backward, before and after one with a backward."""
    x = normal(1, 150, 150)
    with offload():
        (x * 2).exp().sin().sum()
        loss = (x * 2).exp().sin().sum()
        (x * 2).exp().sin().sum()
    loss.backward()
    return bits(loss, x.grad)


class Cubic(Function):
    """x^3 + y; saves an input, an output, an intermediate and None."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        square = x * x
        out = square * x + y
        ctx.save_for_backward(x, None, square, out, x.t())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        x, none, square, out, transposed = ctx.saved_tensors
        assert none is None
        assert transposed.shape == x.shape[::-1]
        return grad * square * 3 + (out - out) + (transposed.t() - x), grad


def functions(offload: Offload) -> Bits:
    """A custom Function, differentiated twice."""
    x, y = normal(1, 9, 9), normal(2, 9, 9)
    with offload():
        out = Cubic.apply(x * 1, y).sin()
        (first,) = gradient(out.sum(), x, create_graph=True)
        loss = first.square().sum()
    loss.backward()
    return bits(first, x.grad, y.grad)


def backward_inside(offload: Offload) -> Bits:
    """Forward, backward and double backward, all inside the session."""
    x = normal(1, 12, 12)
    with offload():
        y = (x.t() @ x).tanh().sum()
        (g,) = gradient(y, x, create_graph=True)
        (h,) = gradient((g * g).sum(), x, create_graph=True)
        h.sin().sum().backward()
    return bits(y, g, h, x.grad)
