"""What an operator can set about the server, apart from the engine."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The server's settings. All times are seconds, all sizes bytes."""

    host: str = "127.0.0.1"
    """Loopback: whoever wants the network to reach the server says so."""
    port: int = 8000
    """0 takes any free one; the log says which."""
    api_key: str | None = field(default=None, repr=False)
    """What clients must send as `Authorization: Bearer KEY`, everywhere but at `/health`; None lets everyone in."""
    served_name: str | None = None
    """The model's name in the API; None takes the loaded model's own."""
    show_text: bool = False
    """Whether `/cache` may show prompts as text. Off, nothing that leaves the process tells a prompt."""
    access_log: bool = True
    """Whether each call is logged, by its path and status."""
    max_body_bytes: int = 16 * 2**20
    """A longer request body is refused with 413."""
    max_choices: int = 128
    """Choices in one call at most: prompts times `n`."""
    body_seconds: float = 30.0
    """How long a client may take to send its body, before 408."""
    request_seconds: float = 600.0
    """How long a call may take in all, waiting included, before it is ended with an error."""
    heartbeat_seconds: float = 15.0
    """A stream with nothing to say for so long sends an empty comment, so that proxies keep it open."""
    grace_seconds: float = 30.0
    """How long running calls may go on after the server was told to stop; then they are told."""
