"""What the tests of the commands over traces share."""

import json
from pathlib import Path

import pytest

CYCLE = [{"tokens": [prefix] * 32 + [9]} for prefix in (1, 2, 3, 4, 5) * 20]


@pytest.fixture
def cycle(tmp_path: Path) -> str:
    path = tmp_path / "cycle.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in CYCLE))
    return str(path)
