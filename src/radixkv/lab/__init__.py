"""The lab: what a trace says about prefix caching. No engine, no torch; needs `radixkv[lab]`."""

from radixkv.lab.blocks import SpanError, default_block_size
from radixkv.lab.curve import Cliff, LruCurve, lru_curve
from radixkv.lab.grid import WorkerError, replay_grid
from radixkv.lab.histogram import Histogram
from radixkv.lab.models import MODELS, MemoryTooSmallError, ModelConfigError, ModelCost, Roofline, find_model
from radixkv.lab.optimum import Optimum
from radixkv.lab.replay import ReplayConfig, ReplayResult, replay
from radixkv.lab.reuse import Reuse, ReuseStack
from radixkv.lab.rows import curve_report, replay_row
from radixkv.lab.sampling import SampleError, sampled_curve
from radixkv.lab.sizes import USUAL_SHARES, ShareError, Sizes, bytes_text
from radixkv.lab.source import TraceFiles

__all__ = [
    "MODELS",
    "USUAL_SHARES",
    "Cliff",
    "Histogram",
    "LruCurve",
    "MemoryTooSmallError",
    "ModelConfigError",
    "ModelCost",
    "Optimum",
    "ReplayConfig",
    "ReplayResult",
    "Reuse",
    "ReuseStack",
    "Roofline",
    "SampleError",
    "ShareError",
    "Sizes",
    "SpanError",
    "TraceFiles",
    "WorkerError",
    "bytes_text",
    "curve_report",
    "default_block_size",
    "find_model",
    "lru_curve",
    "replay",
    "replay_grid",
    "replay_row",
    "sampled_curve",
]
