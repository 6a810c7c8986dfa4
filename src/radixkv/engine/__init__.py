"""A small real engine on the block manager: any causal model of transformers', with a prefix cache.

It needs the extra `engine`: torch, transformers and what they need to load models.
"""

from importlib.util import find_spec

from radixkv.engine.errors import (
    EngineStoppedError,
    ModelFilesError,
    ParameterError,
    PromptTooLongError,
    QueueFullError,
    UnsupportedModelError,
)
from radixkv.errors import MissingExtraError

for _package in (
    "torch",
    "transformers",
    "numpy",
    "safetensors",
    "gguf",
    "accelerate",
    "filelock",
    "platformdirs",
    "tqdm",
):
    if find_spec(_package) is None:
        raise MissingExtraError(part="radixkv.engine", package=_package, extra="engine")

from radixkv.engine.config import EngineConfig  # noqa: E402
from radixkv.engine.default_model import DEFAULT_MODEL, default_model_folder  # noqa: E402
from radixkv.engine.engine import Engine  # noqa: E402
from radixkv.engine.models import DTYPES, LoadedModel, adopt_model, load_model  # noqa: E402
from radixkv.engine.request import FinishReason, Output, Request, Timings  # noqa: E402
from radixkv.engine.sampling import SamplingParams, TokenLogprobs  # noqa: E402
from radixkv.engine.snapshot import EngineSnapshot  # noqa: E402

__all__ = [
    "DEFAULT_MODEL",
    "DTYPES",
    "Engine",
    "EngineConfig",
    "EngineSnapshot",
    "EngineStoppedError",
    "FinishReason",
    "LoadedModel",
    "MissingExtraError",
    "ModelFilesError",
    "Output",
    "ParameterError",
    "PromptTooLongError",
    "QueueFullError",
    "Request",
    "SamplingParams",
    "Timings",
    "TokenLogprobs",
    "UnsupportedModelError",
    "adopt_model",
    "default_model_folder",
    "load_model",
]
