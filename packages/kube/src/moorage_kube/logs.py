"""The log format of our processes: one line per event, a constant sentence and then its fields."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from moorage_kube.clock import SYSTEM, rfc3339_micro

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Fields(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        parts = [rfc3339_micro(SYSTEM.now()), record.levelname.lower(), record.name, record.getMessage()]
        parts += [f"{name}={value!r}" for name, value in fields.items()]
        if record.exc_info:
            parts.append("\n" + self.formatException(record.exc_info))
        return " ".join(parts)


def set_up_logging(level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send all loggers to `stream` (standard error by default)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Fields())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
