"""Who of the waiting requests is admitted next: queue orders that follow the cache, and a bound on waiting."""

from radixkv.scheduler.base import QueueOrder, Waiting
from radixkv.scheduler.queue import ORDERS, QueuedError, WaitingQueue

__all__ = ["ORDERS", "QueueOrder", "QueuedError", "Waiting", "WaitingQueue"]
