"""What `from radixkv import ...` offers, and that importing it brings nothing else along."""

from __future__ import annotations

import importlib.metadata
import inspect
import subprocess
import sys
from pathlib import Path

import radixkv
from radixkv import errors

PARTS = {
    "BlockManager",
    "BlockPool",
    "BlockTable",
    "CacheObserver",
    "EvictionPolicy",
    "HashCache",
    "Inserted",
    "ManagerStats",
    "POLICIES",
    "PrefixCache",
    "PrefixLocation",
    "PrefixMatch",
    "PrefixProbe",
    "PrefixStats",
    "RadixCache",
    "RadixTree",
    "TokenKey",
    "TraceError",
    "__version__",
    "make_policy",
}
ERRORS = {
    "BlockCountError",
    "BlockIdError",
    "BlockOwnershipError",
    "BlockTableError",
    "InvariantError",
    "LockError",
    "MissingExtraError",
    "NamespaceError",
    "NodeError",
    "OutOfBlocksError",
    "RadixKVError",
    "SizeError",
    "StaleNodeError",
    "TokenError",
    "TraceError",
    "UnknownNameError",
}


def test_exported_names_are_pinned() -> None:
    """A name comes or goes only together with this list."""
    assert sorted(PARTS | ERRORS) == sorted(radixkv.__all__)


def test_every_exported_name_is_there() -> None:
    """Nothing in `__all__` is made up."""
    assert [] == [name for name in radixkv.__all__ if not hasattr(radixkv, name)]


def test_every_error_class_is_exported_and_under_one_root() -> None:
    """Whoever catches `RadixKVError` catches them all."""
    classes = {
        name: kind for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
    }

    assert sorted(ERRORS) == sorted(classes)
    assert [] == [name for name, error in classes.items() if not issubclass(error, radixkv.RadixKVError)]


def test_version_is_the_installed_one() -> None:
    """The number is written in one place only."""
    assert importlib.metadata.version("radixkv") == radixkv.__version__


def test_py_typed_is_shipped() -> None:
    """Without the marker type checkers ignore the annotations of an installed package."""
    assert Path(radixkv.__file__).with_name("py.typed").is_file()


def test_importing_brings_no_third_party_module() -> None:
    """The core is the standard library alone."""
    program = "import sys; before = set(sys.modules); import radixkv; print(*sorted(set(sys.modules) - before))"
    printed = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    tops = {name.partition(".")[0] for name in printed}

    assert "radixkv" in tops
    assert set() == tops - {"radixkv"} - sys.stdlib_module_names
