"""One container of the pod, with its attempts and its report."""

from __future__ import annotations

from .logs import Log
from .memory import Watch
from .messages import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Container:
    """One container of the pod and its current attempt."""

    def __init__(self, spec: dict[str, Any], role: str) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.role = role  # init, sidecar or app
        self.attempt = -1
        self.pid = 0
        self.reason_pending = ""  # why it is being killed, when it is the shim that kills
        self.message_pending = ""
        self.started_wall = 0.0
        self.watch = Watch(spec.get("memoryLimitBytes"))
        self.log: Log | None = None
        self.pipes: dict[int, bytes] = {}
        self.message: Message | None = None  # of this attempt
        self.hook_pid = 0  # of the running hook
        self.hook_kind = ""  # postStart or preStop, while it runs
        self.asked = -1  # the attempt that was asked to end
        self.kill_at: float | None = None  # monotonic moment of SIGKILL after an order to restart
        self.restart_seen = 0  # mtime of the last such order
        self.backoff = 0.0  # seconds the next failure waits; 0: none so far
        self.start_at: float | None = None  # monotonic; None: not to be started
        self.done = False  # will not run again
        self.failed = False
        self.report: dict[str, Any] = {
            "name": self.name,
            "role": role,
            "restartCount": 0,
            "pid": 0,
            "peakMemoryBytes": 0,
            "memoryBytes": 0,
            "state": {"waiting": {"reason": "PodInitializing"}},
            "lastState": {},
        }

    @property
    def running(self) -> bool:
        return self.pid != 0
