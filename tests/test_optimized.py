"""`python -O` drops the asserts of the code, and none of the tests': a pass under `-O` is a real one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

import radixkv

TESTS = Path(__file__).parent
HELPERS = sorted(
    ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
    for path in TESTS.rglob("*.py")
    if path.stem not in {"__init__", "conftest"} and not path.stem.startswith("test_")
)


def claim(value: object) -> None:
    assert value


def test_asserts_of_test_modules_are_live() -> None:
    """Under -O too, where Python itself would have dropped this one."""
    with pytest.raises(AssertionError):
        claim(value=0)


def test_asserts_of_helper_modules_are_live() -> None:
    """Each module of helpers is loaded by pytest's rewriting hook."""
    assert HELPERS
    loaders = {name: type(importlib.import_module(name).__spec__.loader) for name in HELPERS}  # type: ignore[union-attr]

    assert dict.fromkeys(HELPERS, AssertionRewritingHook) == loaders


def test_asserts_of_code_are_dead_when_optimized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary module, loaded as radixkv's are, keeps its asserts exactly where Python is not optimizing."""
    (tmp_path / "ordinary_module.py").write_text("def claim(value):\n    assert value\n    return 'unchecked'\n")
    monkeypatch.syspath_prepend(tmp_path)
    ordinary = importlib.import_module("ordinary_module")

    assert (sys.flags.optimize == 0) is __debug__
    assert type(radixkv.__spec__.loader) is type(ordinary.__spec__.loader)  # type: ignore[union-attr]
    if sys.flags.optimize:
        assert "unchecked" == ordinary.claim(value=0)
    else:
        with pytest.raises(AssertionError):
            ordinary.claim(value=0)
