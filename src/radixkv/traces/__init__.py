"""Traces of requests: records, readers and generators."""

from radixkv.traces.reading import READERS, Trace, read_trace, trace_bytes
from radixkv.traces.request import Request
from radixkv.traces.tokenizer import EstimatingTokenizer, Tokenizer, TokenizerError, load_tokenizer
from radixkv.traces.writing import WRITERS, write_trace

__all__ = [
    "READERS",
    "WRITERS",
    "EstimatingTokenizer",
    "Request",
    "Tokenizer",
    "TokenizerError",
    "Trace",
    "load_tokenizer",
    "read_trace",
    "trace_bytes",
    "write_trace",
]
