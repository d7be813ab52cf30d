"""Internal: what a DataLoader does in the main process and in its workers."""

from offgrad.utils.data._utils import collate, fetch, transport, worker

__all__ = ["collate", "fetch", "transport", "worker"]
