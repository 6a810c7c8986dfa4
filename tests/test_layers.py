"""Imports point down: a module knows only the layers below its own, and never a sibling."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import radixkv

SOURCE = Path(radixkv.__file__).parent

LAYERS = (
    ("types", "errors"),
    ("keys", "drawing"),
    ("tree", "pool", "eviction", "counters", "traces"),
    ("cache",),
    ("radix_cache", "hash_cache"),
    ("manager",),
    ("scheduler",),
    ("__init__",),
    ("engine", "lab"),
    ("server", "bench"),
    ("cli",),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

# Named for annotations alone, under `if TYPE_CHECKING`: (importer, imported).
TYPES_ONLY = {("drawing", "tree")}

WITH_EXTRAS = {"engine", "lab", "server", "bench", "cli", "traces"}
"""These may import what is not standard."""

# Inside a folder: the layers of its files, lowest first. The interchangeable implementations of eviction/ and
# scheduler/ are on the one layer that names none.
INSIDE: dict[str, tuple[tuple[str, ...], ...]] = {
    "eviction": (("base",), ("lru",), (), ("__init__",)),
    "scheduler": (("base",), (), ("queue",), ("__init__",)),
    "traces": (
        ("request", "source", "tokenizer"),
        ("base", "generate/base"),
        ("chatml",),
        (),
        ("reading", "writing", "generate/__init__"),
        ("__init__",),
    ),
    "lab": (
        ("style", "blocks", "histogram", "models", "slots"),
        ("sizes",),
        ("ages", "waiting", "reuse", "source"),
        ("curve", "optimum", "replay"),
        ("grid", "rows", "plots", "sampling"),
        ("routing", "splits"),
        ("causes",),
        ("fixes",),
        ("doctor",),
        ("pictures", "wording"),
        ("report",),
        ("__init__",),
    ),
    "engine": (
        ("errors", "threads", "linears", "grouping"),
        ("sampling", "kv_store", "text", "config", "snapshot", "default_model"),
        ("request", "attention"),
        ("runner",),
        ("probe",),
        ("models",),
        ("steps",),
        ("engine",),
        ("__init__",),
    ),
    "server": (
        ("config", "connection", "errors", "metrics", "sse", "demo"),
        ("tokens",),
        ("protocol", "guards", "generation", "cache_view"),
        ("answers", "state"),
        ("calls",),
        ("app",),
        ("process",),
        ("__init__",),
    ),
    "cli": (
        ("__init__",),
        ("say", "runtime"),
        ("options", "tracing"),
        ("serve", "demo", "bench", "generate", "replay", "curve", "doctor"),
        ("commands",),
        ("__main__",),
    ),
    "bench": (("workloads", "best", "rates"), ("measure", "peer"), ("verdicts", "run"), ("report",), ("__init__",)),
}
# Imported when it runs, and not before: (importer, imported).
LAZY = {("cli/__init__", "cli/commands")}


def rank_inside(folder: str, file: str) -> int:
    """The layer of a file in its folder."""
    layers = INSIDE[folder]
    named = {name: rank for rank, layer in enumerate(layers) for name in layer}
    return named.get(file, layers.index(()) if () in layers else len(layers))


def imports(code: ast.AST) -> Iterator[tuple[str, bool]]:
    """Every name that the code imports, wherever in it, and whether type checkers alone see that import."""
    for node in ast.iter_child_nodes(code):
        types_only = isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            yield from ((source if node.level else f"{source}.{alias.name}", False) for alias in node.names)
        else:
            yield from ((name, types_only or inner) for name, inner in imports(node))


def module_of(name: str, root: Path) -> str:
    """The path below the package at `root` of the module that importing `name` runs: the longest that there is.

    `from package import x` so names the module x if there is one, else the package's own `__init__`.
    """
    parts = name.split(".")[1:]
    while parts and not root.joinpath(*parts).is_dir() and not root.joinpath(*parts).with_suffix(".py").is_file():
        parts.pop()
    path = root.joinpath(*parts)
    return (path / "__init__" if path.is_dir() else path).relative_to(root).as_posix()


def below(other: str, me: str) -> bool:
    """Whether the module `other` lies in a layer below that of `me`."""
    (mine, _, inside), (theirs, _, theirs_inside) = me.partition("/"), other.partition("/")
    if mine == theirs:
        return rank_inside(mine, theirs_inside) < rank_inside(mine, inside)
    return theirs in RANK and RANK[theirs] < RANK[mine]


def violations(root: Path) -> list[str]:
    """What in the package at `root` breaks the order, one line each; `root` is named as the package is."""
    found = []
    for file in sorted(root.rglob("*.py")):
        me = file.relative_to(root).with_suffix("").as_posix()
        if me.partition("/")[0] not in RANK:
            found.append(f"{me} has no layer")
            continue
        for name, types_only in imports(ast.parse(file.read_text(encoding="utf-8"))):
            top = name.partition(".")[0]
            if not top:
                found.append(f"{me} imports {name}, relatively")
            elif top != root.name:
                if top not in sys.stdlib_module_names and me.partition("/")[0] not in WITH_EXTRAS:
                    found.append(f"{me} imports {name}, not standard")
            elif (
                not below(other := module_of(name, root), me)
                and not (types_only and (me, other) in TYPES_ONLY)
                and (me, other) not in LAZY
            ):
                found.append(f"{me} imports {other}, not below it")
    return found


def test_imports_point_down() -> None:
    """The package as it is keeps the order, and imports the standard library alone."""
    assert [] == violations(SOURCE)


def test_every_layer_is_there() -> None:
    """The table above names no module that is gone."""
    modules = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}

    assert sorted(RANK) == sorted(modules)


@pytest.mark.parametrize(
    ("file", "code", "expected"),
    [
        ("types.py", "import radixkv.errors", "types imports errors, not below it"),
        ("pool.py", "from radixkv.tree import RadixTree", "pool imports tree, not below it"),
        ("tree.py", "from radixkv.radix_cache import RadixCache", "tree imports radix_cache, not below it"),
        (
            "hash_cache.py",
            "def f():\n    from radixkv import radix_cache",
            "hash_cache imports radix_cache, not below it",
        ),
        ("manager.py", "from radixkv import RadixCache", "manager imports __init__, not below it"),
        ("manager.py", "import radixkv", "manager imports __init__, not below it"),
        ("keys.py", "import numpy.linalg", "keys imports numpy.linalg, not standard"),
        ("keys.py", "from numpy import array", "keys imports numpy.array, not standard"),
        ("keys.py", "from . import errors", "keys imports ., relatively"),
        ("keys.py", "from .errors import TokenError", "keys imports .errors, relatively"),
        ("eviction/lru.py", "from .base import EvictionPolicy", "eviction/lru imports .base, relatively"),
        ("eviction/lru.py", "from radixkv.eviction import lfu", "eviction/lru imports eviction/lfu, not below it"),
        ("eviction/base.py", "import radixkv.eviction.lru", "eviction/base imports eviction/lru, not below it"),
        (
            "eviction/lru.py",
            "from radixkv.eviction import make_policy",
            "eviction/lru imports eviction/__init__, not below it",
        ),
        ("eviction/lru.py", "from radixkv.cache import PrefixCache", "eviction/lru imports cache, not below it"),
        (
            "tree.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import radixkv.cache",
            "tree imports cache, not below it",
        ),
        ("drawing.py", "import radixkv.tree", "drawing imports tree, not below it"),
        ("utils.py", "import sys", "utils has no layer"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, code: str, expected: str) -> None:
    """The check above can fail: each planted import is reported, and nothing else is."""
    root = plant(tmp_path)
    (root / file).write_text(code)

    assert [expected] == violations(root)


def test_imports_that_point_down_are_fine(tmp_path: Path) -> None:
    """The checker does not cry wolf: no allowed form of import is reported."""
    root = plant(tmp_path)
    (root / "__init__.py").write_text("from radixkv.manager import BlockManager\nfrom radixkv.eviction import POLICIES")
    (root / "radix_cache.py").write_text("import sys, os.path\nfrom radixkv import eviction, keys\nimport radixkv.tree")
    (root / "eviction" / "__init__.py").write_text("from radixkv.eviction.lru import Lru\nimport radixkv.errors")
    (root / "eviction" / "lru.py").write_text("from __future__ import annotations\nimport radixkv.eviction.base")
    (root / "drawing.py").write_text("import typing\nif typing.TYPE_CHECKING:\n    from radixkv.tree import RadixTree")

    assert [] == violations(root)


def plant(folder: Path) -> Path:
    """A package of empty modules with the names of ours."""
    root = folder / "radixkv"
    (root / "eviction").mkdir(parents=True)
    for name in RANK.keys() - {"eviction"}:
        (root / f"{name}.py").touch()
    for name in ("__init__", "base", "lru", "lfu"):
        (root / "eviction" / f"{name}.py").touch()
    return root
