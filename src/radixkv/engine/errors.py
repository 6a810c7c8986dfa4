"""What only the engine raises, below `RadixKVError`."""

from __future__ import annotations

from radixkv.errors import RadixKVError


class ModelFilesError(RadixKVError):
    """The files of a model could not be had, or are not what they should be."""


class UnsupportedModelError(RadixKVError, ValueError):
    """A model that this engine would not compute correctly; `model` names it, `reason` says why."""

    def __init__(self, *, model: str, reason: str) -> None:
        super().__init__(f"cannot serve {model}: {reason}")
        self.model, self.reason = model, reason


class ParameterError(RadixKVError, ValueError):
    """A parameter out of its range; `name` is the parameter's."""

    def __init__(self, *, name: str, expected: str, given: object) -> None:
        super().__init__(f"{name} must be {expected}, got {given!r}")
        self.name, self.expected, self.given = name, expected, given


class PromptTooLongError(RadixKVError, ValueError):
    """A prompt of more tokens than the model's context or the block pool takes; `limit` is the lower of the two."""

    def __init__(self, *, tokens: int, limit: int) -> None:
        super().__init__(f"the prompt has {tokens} tokens; at most {limit} fit")
        self.tokens, self.limit = tokens, limit


class QueueFullError(RadixKVError):
    """As many requests wait as may; try again later."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(f"{limit} requests are waiting already")
        self.limit = limit


class EngineStoppedError(RadixKVError):
    """The engine takes nothing any more: it is shut down, or was never started."""
