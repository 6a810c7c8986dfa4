"""What every test shares: live asserts in helper modules, and the Hypothesis profiles.

Choose a profile with `HYPOTHESIS_PROFILE=deep` or pytest's own `--hypothesis-profile=deep`:

ci      the default: always the same examples; a failure is shown as it was found, which takes no time
debug   the same examples, and a failure is made as small as can be, which takes minutes for a state machine
quick   few of them: for the pass under `python -O` and for the mutants
deep    many, new ones at each run, made small
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# pytest turns the asserts of test modules into plain `raise`s, which outlive `python -O`; of helpers it must be told.
_TESTS = Path(__file__).parent
_PARTS = {path.relative_to(_TESTS).parts[0].removesuffix(".py") for path in _TESTS.rglob("*.py")}
pytest.register_assert_rewrite(*sorted(f"tests.{part}" for part in _PARTS - {"__init__", "conftest"}))

_COMMON = settings(
    derandomize=True,
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("debug", _COMMON)
settings.register_profile("ci", _COMMON, phases=[Phase.explicit, Phase.generate])
settings.register_profile("quick", _COMMON, phases=[Phase.explicit, Phase.generate], max_examples=15)
settings.register_profile("deep", _COMMON, derandomize=False, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
