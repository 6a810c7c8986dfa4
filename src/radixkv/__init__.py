"""Prefix caching for LLM serving: the radix cache, the hash cache, the block pool and the block manager.

The core imports the standard library alone.
"""

from radixkv.cache import CacheObserver, PrefixCache
from radixkv.errors import (
    BlockCountError,
    BlockIdError,
    BlockOwnershipError,
    BlockTableError,
    InvariantError,
    LockError,
    MissingExtraError,
    NamespaceError,
    NodeError,
    OutOfBlocksError,
    RadixKVError,
    SizeError,
    StaleNodeError,
    TokenError,
    TraceError,
    UnknownNameError,
)
from radixkv.eviction import POLICIES, make_policy
from radixkv.eviction.base import EvictionPolicy
from radixkv.hash_cache import HashCache
from radixkv.keys import TokenKey
from radixkv.manager import BlockManager, BlockTable
from radixkv.pool import BlockPool
from radixkv.radix_cache import RadixCache
from radixkv.tree import RadixTree
from radixkv.types import Inserted, ManagerStats, PrefixLocation, PrefixMatch, PrefixProbe, PrefixStats

__version__ = "0.1.0"

__all__ = [
    "POLICIES",
    "BlockCountError",
    "BlockIdError",
    "BlockManager",
    "BlockOwnershipError",
    "BlockPool",
    "BlockTable",
    "BlockTableError",
    "CacheObserver",
    "EvictionPolicy",
    "HashCache",
    "Inserted",
    "InvariantError",
    "LockError",
    "ManagerStats",
    "MissingExtraError",
    "NamespaceError",
    "NodeError",
    "OutOfBlocksError",
    "PrefixCache",
    "PrefixLocation",
    "PrefixMatch",
    "PrefixProbe",
    "PrefixStats",
    "RadixCache",
    "RadixKVError",
    "RadixTree",
    "SizeError",
    "StaleNodeError",
    "TokenError",
    "TokenKey",
    "TraceError",
    "UnknownNameError",
    "__version__",
    "make_policy",
]
