"""Everything radixkv raises on purpose: one tree, each error carrying its numbers.

A call that raises one of these has changed nothing.
"""

from __future__ import annotations

from typing import Any


class RadixKVError(Exception):
    """The root of every error radixkv raises on purpose. All of them can be pickled, numbers and all."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class SizeError(RadixKVError, ValueError):
    """A size or a count below the least that makes sense."""

    def __init__(self, *, name: str, minimum: int, given: object) -> None:
        super().__init__(f"{name} must be an integer of at least {minimum}, got {given!r}")
        self.name, self.minimum, self.given = name, minimum, given


class BlockCountError(RadixKVError, ValueError):
    """An insert that does not bring exactly one block for every full block of its tokens."""

    def __init__(self, *, expected: int, given: int) -> None:
        super().__init__(f"expected {expected} blocks, one for every full block of the tokens, got {given}")
        self.expected, self.given = expected, given


class BlockIdError(RadixKVError, ValueError):
    """A block id that is no integer in `[0, 2**32)`; `index` is None where its place is not known."""

    def __init__(self, *, index: int | None, value: object) -> None:
        where = "" if index is None else f" at index {index}"
        super().__init__(f"a block id is an integer in [0, 2**32), got {value!r}{where}")
        self.index, self.value = index, value


class TokenError(RadixKVError, ValueError):
    """Tokens that are no flat sequence of integers in `[0, 2**32)`.

    `index` and `value` name the first token at fault; `index` is None where the whole is.
    """

    def __init__(self, reason: str, *, index: int | None, value: object) -> None:
        super().__init__(reason)
        self.index, self.value = index, value


class NamespaceError(RadixKVError, TypeError):
    """A namespace that is neither None nor a string."""

    def __init__(self, *, value: object) -> None:
        super().__init__(f"a namespace is a str or None, got {type(value).__name__}: {value!r}")
        self.value = value


class UnknownNameError(RadixKVError, ValueError):
    """A name that stands in no table; `known` lists those that do."""

    def __init__(self, *, kind: str, name: object, known: tuple[str, ...]) -> None:
        super().__init__(f"unknown {kind} {name!r}; known: {', '.join(known)}")
        self.kind, self.name, self.known = kind, name, known


class NodeError(RadixKVError, ValueError):
    """A change of a tree's structure that would break it."""


class StaleNodeError(RadixKVError):
    """A handle whose node was evicted or reset away."""


class LockError(RadixKVError):
    """An unlock of what is not locked, a node of another cache, or a reset while something is locked.

    `locked_blocks` is how many blocks of the cache are locked now.
    """

    def __init__(self, reason: str, *, locked_blocks: int) -> None:
        super().__init__(reason)
        self.locked_blocks = locked_blocks


class BlockOwnershipError(RadixKVError, ValueError):
    """A block handed over by somebody who does not own it.

    `owner` is who owns it now ("free", "request", "cache", or "nobody" for an id outside the pool), `expected` who
    would have to.
    """

    def __init__(self, *, block: object, owner: str, expected: str) -> None:
        super().__init__(f"block {block!r} is owned by {owner!r}, not by {expected!r}")
        self.block, self.owner, self.expected = block, owner, expected


class OutOfBlocksError(RadixKVError):
    """More blocks wanted than the pool has free and the cache can give up."""

    def __init__(self, *, wanted: int, available: int) -> None:
        super().__init__(f"wanted {wanted} blocks, {available} available: {wanted - available} missing")
        self.wanted, self.available = wanted, available

    @property
    def missing(self) -> int:
        """How many more blocks would have been enough."""
        return self.wanted - self.available


class BlockTableError(RadixKVError, ValueError):
    """A block table used out of turn, at the wrong manager, or with a count that cannot be."""


class TraceError(RadixKVError, ValueError):
    """A line of a trace that is no request.

    `path` is the file ("-" for standard input), `line` counts from 1, `field` is the name in the file; the latter two
    are None where it is the whole file, or line, that is wrong.
    """

    def __init__(self, reason: str, *, path: str, line: int | None = None, field: str | None = None) -> None:
        where = path if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {reason}" if field is None else f"{where}: {field}: {reason}")
        self.path, self.line, self.field = path, line, field


class MissingExtraError(RadixKVError, ImportError):
    """A part of radixkv was asked for whose packages are not installed; `extra` brings `package` along."""

    def __init__(self, *, part: str, package: str, extra: str) -> None:
        super().__init__(f"{part} needs the package {package!r}: pip install 'radixkv[{extra}]'")
        self.part, self.package, self.extra = part, package, extra


class InvariantError(RadixKVError):
    """`check_invariants` found a contradiction: a bug in radixkv, or somebody reached inside."""


def _rebuild(kind: type[RadixKVError], args: tuple[Any, ...], numbers: dict[str, Any]) -> RadixKVError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(numbers)
    return error
