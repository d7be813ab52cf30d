"""What recurrent layers share: saving, gradients, and gradients of gradients."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offgrad.autograd.gradients import grad as gradients
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import wrap
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._linalg.affine import linear
from offgrad.ops._shape.joining import cat

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.kernels import TimeSteps

Cell = Callable[..., "tuple[Tensor, ...]"]


class Layer(Op):
    """A layer in one direction over the rows of all steps.

    Inputs are x [rows, I], the first states [batch, ...] and the weights, some of them None; the
    outputs are the states of all rows and the last states.
    """

    slots: ClassVar[tuple[str, ...]]
    # What forward computes for backward besides its outputs.
    computed: ClassVar[tuple[str, ...]]
    gradient: ClassVar[type["LayerBackward"]]

    def keep(self, inputs: Sequence[Array | None], **others: Array | None) -> None:
        """Save the inputs under their slots, and `others`."""
        self.save(**dict(zip(self.slots, inputs, strict=True)), **others)

    def backward(self, *grads: "Tensor | None") -> Any:
        """Return all gradients: the gates' step by step, the weights' by one product each."""
        given = [self.saved(slot) if slot in self._saved else None for slot in self.slots]
        arrays = {slot: self.saved(slot)._array for slot in (*self.computed, "output")}
        results = self.gradient.apply_all(
            *grads, *given, arrays=arrays, options=self.options, needs=self.needs_input_grad
        )
        return self.gradient.spread(results)


class LayerBackward(Op):
    """The gradients of a layer; keeps the layer's inputs and the incoming gradients."""

    slots: ClassVar[tuple[str, ...]]
    states: ClassVar[int] = 1

    @staticmethod
    def spread(results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the gradients of the layer's inputs."""
        return results

    @staticmethod
    def cell(options: dict[str, Any]) -> Cell:
        """Return the formula of a step: (inputs' product, weights, states) to the next states."""
        raise NotImplementedError

    def keep(self, grads: Sequence[Array | None], inputs: Sequence[Array | None]) -> None:
        """Save all for `backward`."""
        names = [f"grad{at}" for at in range(self.states + 1)]
        self.save(**dict(zip((*names, *self.slots), (*grads, *inputs), strict=True)))

    def backward(self, *grads: "Tensor | None") -> Any:
        """Differentiate the gradients of the formula."""
        count = self.states + 1
        names = [*(f"grad{at}" for at in range(count)), *self.slots]
        present = [name for name in names if name in self._saved]
        needs = dict(zip(names, self.needs_input_grad, strict=True))
        wanted = dict(zip(self.slots, self.needs, strict=True))

        def reference(*tensors: "Tensor") -> Any:
            known = dict(zip(present, tensors, strict=True))
            for slot in self.slots:
                if wanted[slot] and not known[slot].requires_grad:
                    known[slot] = known[slot].detach().requires_grad_()
            outputs = unrolled(self.cell(self.options), self.options["steps"], known, self.states)
            pairs = [
                (output, known[name])
                for name, output in zip(names, outputs, strict=False)
                if name in known and output.requires_grad
            ]
            asked = [slot for slot in self.slots if wanted[slot]]
            found = gradients(
                [output for output, _ in pairs],
                [known[slot] for slot in asked],
                [grad for _, grad in pairs],
                create_graph=True,
                allow_unused=True,
            )
            by_slot = dict(zip(asked, found, strict=True))
            return self.gather([by_slot.get(slot) for slot in self.slots])

        computed = differentiate(
            reference,
            [self.saved(name) for name in present],
            grads,
            [needs[name] for name in present],
        )
        by_name = dict(zip(present, computed, strict=True))
        return tuple(by_name.get(name) for name in names)

    @staticmethod
    def gather(results: "list[Tensor | None]") -> "tuple[Tensor | None, ...]":
        """Return what `forward` returns, from the gradients of the layer's inputs."""
        return tuple(results)


def unrolled(
    cell: Cell, steps: "TimeSteps", known: "dict[str, Tensor]", states: int
) -> "tuple[Tensor, ...]":
    """Return a layer's outputs, computed step by step in plain operations."""
    products = linear(known["input"], known["weight_ih"], known.get("bias_ih"))
    current = [known[slot] for slot in ("hx", "cx")[:states]]
    results = []
    for step, count in enumerate(steps.counts):
        count = int(count)
        new = cell(products[steps.rows(step)], known, *(each[:count] for each in current))
        results.append(new[0])
        current = [
            after if count == len(before) else cat([after, before[count:]])
            for after, before in zip(new, current, strict=True)
        ]
    rows = np.concatenate([np.arange(len(products))[steps.rows(at)] for at in range(len(results))])
    return cat(results)[wrap(np.argsort(rows))], *current
