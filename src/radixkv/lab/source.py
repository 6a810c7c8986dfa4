"""A trace in files, to be read as often as it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from radixkv.traces import Trace, load_tokenizer, read_trace


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """The files of one trace. A call reads it from the beginning; it pickles, so that workers read for themselves."""

    paths: tuple[str, ...]
    """One or more."""
    format: str | None = None
    """A name of `radixkv.traces.READERS`; None to look at the files."""
    skip_bad: bool = False
    """Pass over lines that are no requests."""
    tokenizer: str | None = None
    """What `radixkv.traces.load_tokenizer` takes, for text; None to estimate."""

    def __call__(self, progress: Callable[[int], object] | None = None) -> Trace:
        """See `radixkv.traces.read_trace` and `load_tokenizer`, errors included."""
        tokenizer = load_tokenizer(self.tokenizer) if self.tokenizer else None
        return read_trace(
            *self.paths, format=self.format, skip_bad=self.skip_bad, tokenizer=tokenizer, progress=progress
        )
