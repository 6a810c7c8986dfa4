"""What the documentation shows is run: every python block of the pages, every example of the docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import radixkv

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = ["radixkv", *sorted(info.name for info in pkgutil.walk_packages(radixkv.__path__, "radixkv."))]

NO_RUN = "<!-- no-run -->"
"""Stands on the line before a block that nothing here can run, such as one that needs a server."""

BLOCK = re.compile(r"^(?P<fence>`{3,})python[^\n]*\n(?P<code>.*?)^(?P=fence)`*[ ]*$", re.DOTALL | re.MULTILINE)


def run_page(page: Path) -> int:
    """Run the python blocks of a page one after the other in one namespace, and return how many there were.

    A block of `>>>` examples is checked as a doctest; any other is executed. Its asserts count, under `-O` too.
    """
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": page.stem}
    ran = 0
    for block in BLOCK.finditer(text):
        if text[: block.start()].rstrip().endswith(NO_RUN):
            continue
        ran += 1
        line = text.count("\n", 0, block.start("code"))
        if block["code"].lstrip().startswith(">>>"):
            examples = doctest.DocTestParser().get_doctest(block["code"], namespace, page.name, str(page), line)
            report: list[str] = []
            results = doctest.DocTestRunner(verbose=False).run(examples, out=report.append, clear_globs=False)
            if results.failed:
                pytest.fail("".join(report), pytrace=False)
            namespace.update(examples.globs)
        else:
            # The empty lines before it make a traceback point at the page's own line.
            exec(compile("\n" * line + block["code"], str(page), "exec", dont_inherit=True, optimize=0), namespace)
    return ran


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block runs, in order, in one namespace, with an empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    run_page(page)


def test_the_readme_shows_something_that_runs() -> None:
    """A README without a running block would pass the test above for nothing."""
    assert run_page(ROOT / "README.md") > 0


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    """Each example of a docstring prints what it says."""
    assert 0 == doctest.testmod(importlib.import_module(name)).failed


def test_docstrings_have_examples() -> None:
    """Examples are found at all."""
    assert sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES) > 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nassert 1 == 2\n```\n", AssertionError),
        ("```python\nx = 1\n```\ntext\n```python\nassert 2 == x\n```\n", AssertionError),
        ("```python\n>>> 1 + 1\n3\n```\n", pytest.fail.Exception),
        ("1. item\n\n```python\nundefined\n```\n", NameError),
    ],
)
def test_a_wrong_block_is_found(tmp_path: Path, text: str, error: type[BaseException]) -> None:
    """The check above can fail."""
    page = tmp_path / "page.md"
    page.write_text(text)

    with pytest.raises(error):
        run_page(page)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no code at all\n", 0),
        ("```text\nnot python\n```\n", 0),
        (f"{NO_RUN}\n```python\nundefined\n```\n", 0),
        ("```python\nx = 1\n```\n\n```python\n>>> x\n1\n>>> y = 2\n```\n\n```python\nassert 3 == x + y\n```\n", 3),
    ],
)
def test_blocks_share_one_namespace_and_may_be_skipped(tmp_path: Path, text: str, expected: int) -> None:
    """What one block defines the next one uses; a marked block is not run."""
    page = tmp_path / "page.md"
    page.write_text(text)

    assert expected == run_page(page)
