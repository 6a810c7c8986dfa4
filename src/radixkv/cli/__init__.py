"""The `radixkv` command. `radixkv[cli]` brings what it needs; the commands say what else they need."""

from __future__ import annotations

import errno
import sys
from typing import Final

FAILED: Final = 1
"""Exit status after anything else that went wrong and is said in a line."""
MISSING_EXTRA: Final = 3
"""Exit status when a package that a command needs is not installed."""
INTERRUPTED: Final = 130
"""Exit status after Ctrl-C: 128 and the number of the signal, as shells count."""


def main() -> None:
    """Run the command line; what the `radixkv` script calls."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:  # a closed pipe is typer's, which says nothing
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        sys.stderr.write(f"radixkv: {error.strerror}\n")
        sys.exit(FAILED)


def _run() -> None:
    try:
        from radixkv.cli.commands import app  # noqa: PLC0415  # without its extra, a line and not a traceback
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "radixkv":
            raise
        sys.stderr.write(f"radixkv: the command line needs the package {error.name!r}: pip install 'radixkv[cli]'\n")
        sys.exit(MISSING_EXTRA)
    app()
