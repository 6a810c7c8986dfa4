"""OpenAI's error object, and what of ours becomes which one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic_core import ErrorDetails
from starlette.responses import JSONResponse

INVALID: Final = "invalid_request_error"
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A call that fails: its status, and the message, field (`param`) and code that the client reads.

    The message goes to the client alone, never to a log: it may quote what the client sent.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after = retry_after
        """Seconds after which it is worth trying again; 0 where that does not help."""

    @property
    def kind(self) -> str:
        """The error object's `type`."""
        return _TYPES.get(self.status, INVALID if self.status < 500 else "server_error")

    def body(self) -> dict[str, dict[str, str | None]]:
        """The error object, as a response or as an event of a stream that has begun."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The error as a whole response."""
        headers = {}
        if self.retry_after:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def unsupported(param: str, *, accepted: str | None = None) -> ApiError:
    """The error for a field of OpenAI's that this server does not serve, or serves with one value only."""
    if accepted is None:
        return ApiError(400, f"'{param}' is not supported by this server.", param=param, code="unsupported_parameter")
    message = f"Unsupported value: '{param}' is supported with {accepted} only."
    return ApiError(400, message, param=param, code="unsupported_value")


def invalid(faults: Sequence[ErrorDetails], body: Mapping[str, object]) -> ApiError:
    """The error for what pydantic found first in a call's body, with the field's path as its `param`.

    Where a field may have one of several forms, pydantic says of each why it is not that. The fault that lies deepest
    belongs to the form that was meant.
    """
    field = faults[0]["loc"][0]
    paths = [(_path(fault, body), fault) for fault in faults if fault["loc"][0] == field]
    deepest = max(path.count(".") + path.count("[") for path, _ in paths)
    meant = [(path, fault) for path, fault in paths if path.count(".") + path.count("[") == deepest]
    param, fault = min(meant, key=lambda pair: pair[1]["type"].endswith("_type"))
    if fault["type"] == "extra_forbidden":
        return ApiError(400, f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    if fault["type"] == "missing":
        message, code = f"Missing required parameter: '{param}'.", "missing_required_parameter"
        return ApiError(400, message, param=param, code=code)
    if len({path for path, _ in meant}) > 1:
        param = str(field)
    forms = len({(path, fault["type"]) for path, fault in meant}) > 1 and fault["type"].endswith("_type")
    reason = "it has none of the forms that it may have" if forms else fault["msg"].removeprefix("Value error, ")
    return ApiError(400, f"Invalid value for '{param}': {reason}.", param=param, code="invalid_value")


def _path(fault: ErrorDetails, body: object) -> str:
    """`messages[0].role` from pydantic's location, without the names of union members that it puts in between."""
    path, value = "", body
    for place, step in enumerate(fault["loc"], start=1):
        if isinstance(step, int) and isinstance(value, list) and step < len(value):
            path, value = f"{path}[{step}]", value[step]
        elif (
            isinstance(step, str)
            and isinstance(value, Mapping)
            and (step in value or (fault["type"] == "missing" and place == len(fault["loc"])))
        ):
            path, value = f"{path}.{step}" if path else step, value.get(step)
    return path
