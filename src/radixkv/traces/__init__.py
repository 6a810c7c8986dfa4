"""Traces of requests: records, readers and generators."""

from radixkv.traces.reading import READERS, Trace, read_trace, trace_bytes
from radixkv.traces.request import Request

__all__ = ["READERS", "Request", "Trace", "read_trace", "trace_bytes"]
