"""Eviction policies, by name. A new one is a file here and a row in the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from radixkv.errors import UnknownNameError
from radixkv.eviction.base import EvictionPolicy
from radixkv.eviction.density import Density
from radixkv.eviction.fifo import Fifo
from radixkv.eviction.lfu import Lfu
from radixkv.eviction.lru import Lru
from radixkv.eviction.mru import Mru
from radixkv.eviction.priority import Priority
from radixkv.eviction.slru import Slru

POLICIES: Final[Mapping[str, Callable[[], EvictionPolicy]]] = {
    "density": Density,
    "fifo": Fifo,
    "lfu": Lfu,
    "lru": Lru,
    "mru": Mru,
    "priority": Priority,
    "slru": Slru,
}
"""Every policy by the name that `eviction=` takes."""


def make_policy(name: str) -> EvictionPolicy:
    """A new policy of that name.

    Raises:
        UnknownNameError: no such policy; lists those there are.

    >>> make_policy("lru").victim() is None
    True
    """
    try:
        make = POLICIES[name]
    except (KeyError, TypeError):
        raise UnknownNameError(kind="eviction policy", name=name, known=tuple(sorted(POLICIES))) from None
    return make()
