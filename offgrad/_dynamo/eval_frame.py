"""``torch._dynamo.eval_frame``: the class of compiled modules."""

from offgrad._compiled import OptimizedModule

__all__ = ["OptimizedModule"]
