"""Traces of requests: records, readers and generators."""

from radixkv.traces.request import Request

__all__ = ["Request"]
