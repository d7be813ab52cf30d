"""Paging: parameters, gradients and optimizer state that come when they are used.

`ModelOffload` decides what is paged, a `PageCache` bounds the memory of pages, and `UseOrder`
predicts which are used next. Internal are the modules below.
"""

from offgrad.session.paging.model_offload import ModelOffload, offload_model

__all__ = ["ModelOffload", "offload_model"]
