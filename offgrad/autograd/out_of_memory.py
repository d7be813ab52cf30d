"""What an `OutOfMemoryError` says about the operation that asked for the memory."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from offgrad.autograd.tensor_base import TensorBase, metadata
from offgrad.memory import OutOfMemoryError

if TYPE_CHECKING:
    from offgrad.autograd.node import Node


def name_forward(error: OutOfMemoryError, node: "Node", inputs: Iterable[Any]) -> None:
    """Begin the message with the operation, and what it runs on."""
    arguments = [title(each) for each in inputs if each is not None]
    error.begin_with(f"forward of {node.name()} on {', '.join(arguments) or 'nothing'}")


def name_backward(error: OutOfMemoryError, node: "Node") -> None:
    """Begin the message with the node of the backward pass, and the leaves it has gradients for."""
    leaves = [getattr(each, "variable", None) for each in (node, *_next_nodes(node))]
    titles = [title(each) for each in leaves if isinstance(each, TensorBase)]
    leading_to = f" for the gradient of {', '.join(titles)}" if titles else ""
    error.begin_with(f"backward of {node.name()}{leading_to}")


def _next_nodes(node: "Node") -> list[Any]:
    return [each for each, _ in node.next_functions]


def title(tensor: Any) -> str:
    """Return the shape of a tensor, and its name if it is a paged parameter."""
    shape = f"{list(metadata(tensor).shape)}"
    name = getattr(tensor._storage.placer, "title", "")
    return f"{name} of {shape}" if name else shape
