"""One line an event: time, level, service, trace id, message. No secrets: callers log names, not values."""

from __future__ import annotations

import logging
import sys
import time

from rouse_common import telemetry


class LineFormatter(logging.Formatter):
    """`2026-11-20T12:00:00.123Z INFO    gateway          trace=0af7…319c message`; a traceback stays on the line."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        trace_id = telemetry.current_trace_id() or "-"
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = record.getMessage()
        if record.exc_info:
            message += " | " + self.formatException(record.exc_info)
        message = message.replace("\r", "\\r").replace("\n", "\\n")
        return f"{stamp}.{int(record.msecs):03d}Z {record.levelname:<7} {self.service:<16} trace={trace_id} {message}"


def configure(service: str, level: str) -> None:
    """Sends the root logger's lines to standard error in our format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(service))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("alembic", "sqlalchemy", "asyncio", "nats", "opentelemetry"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
