"""Whether work is idle: a verdict with its reasons, from its measurements.

Idle is proved, never assumed: each window of the time must be measured, and lie below the limits of GPU and CPU
alike. A gap counts as use: work that is not measured may be busy. CPU use can only show that work is active, never
that it is idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from moorage.model.idle import Policy
from moorage.model.spans import format_span

FRESH = 2  # windows: the newest measured one ended at most so long ago, and LATE
LATE = timedelta(seconds=90)  # readings arrive, and are looked at, by then


class Window(Struct, frozen=True, kw_only=True):
    """Measurements of all pods of a piece of work in a span of time.

    `gpu_peak`: the highest reading of any of its GPUs, 0 to 100; None: at least one GPU was not measured.
    `cpu_milli`: the mean of all its pods together, in thousandths of a core; None: not measured.
    """

    start: datetime
    end: datetime
    gpu_peak: float | None
    cpu_milli: float | None


class Kernels(Struct, frozen=True, kw_only=True):
    """The Jupyter kernels and terminals of a workspace, as reported by its server."""

    last_activity: datetime | None = None  # of the newest; None: there never was any
    busy_since_output: datetime | None = None  # last activity of the newest busy kernel; None: none is busy


class Connection(Struct, frozen=True, kw_only=True):
    """Browser connections, as recorded by the gateway."""

    seen_at: datetime | None = None  # when one was last connected; None: never
    acted_at: datetime | None = None  # when a person last did something in one; None: never


class Facts(Struct, frozen=True, kw_only=True):
    """All data about a piece of work at one moment. `windows`: oldest first."""

    started: datetime  # when it began to run, or was resumed
    windows: tuple[Window, ...] = ()
    kernels: Kernels | None = None  # None: it has none, such as a run
    connection: Connection | None = None  # None: it is not opened in browsers
    checkpoint_at: datetime | None = None
    proven_since: datetime | None = None  # idle since then by earlier looks, where older windows are not given
    unseen: str = ""  # why something that counts cannot be read: then it is in use


class InUse(Struct, frozen=True):
    """The work is in use. `why`: the reason with the measurement."""

    why: str
    since: datetime


class Unseen(Struct, frozen=True):
    """Unknown: something was not measured. Treated as use."""

    why: str


class Idle(Struct, frozen=True):
    """The work is idle since the given time. `why`: the reason with the samples.

    `windows`: measured windows since.
    """

    why: str
    since: datetime
    windows: int
    until: datetime  # measured up to then: idle for `until - since` at least


Verdict = InUse | Unseen | Idle


def judge(facts: Facts, policy: Policy, now: datetime) -> Verdict:
    """Decide whether the work is idle now, and since when."""
    if facts.unseen:
        return Unseen(facts.unseen)
    if not facts.windows:
        return Unseen("no reading of its GPUs yet")
    newest = facts.windows[-1]
    if newest.end < now - FRESH * policy.window - LATE:
        return Unseen(f"no reading of its GPUs since {clock_time(newest.end, now)}")
    tail, stopper = _idle_tail(facts.windows, policy)
    if not tail:
        assert stopper is not None
        return _busy(stopper, policy, now)
    start = tail[0].start
    if stopper is None and facts.proven_since is not None:
        start = min(start, facts.proven_since)
    since, last_use = _last_use(facts, policy, now, start)
    windows = len([window for window in tail if window.end > since])
    if not windows:
        return InUse(last_use, since)
    windows += max(0, int((tail[0].start - since) / policy.window))
    return Idle(_reasons(facts, policy, now, since, windows), since, windows, tail[-1].end)


def _idle_tail(windows: Sequence[Window], policy: Policy) -> tuple[list[Window], Window | None]:
    """The consecutive idle windows at the end (oldest first), and the window before them.

    That window is busy, or a gap without measurements. None if all windows are idle.
    """
    tail: list[Window] = []
    for window in reversed(windows):
        if tail and window.end < tail[-1].start:  # a gap: no measurements between them
            return tail[::-1], Window(start=window.end, end=tail[-1].start, gpu_peak=None, cpu_milli=None)
        if not is_idle(window.gpu_peak, window.cpu_milli, policy):
            return tail[::-1], window
        tail.append(window)
    return tail[::-1], None


def is_idle(gpu_peak: float | None, cpu_milli: float | None, policy: Policy) -> bool:
    """Whether a window with these measurements counts as idle."""
    if gpu_peak is None or cpu_milli is None:
        return False
    return gpu_peak < policy.gpu_below and cpu_milli < policy.cpu_below_milli


def _busy(window: Window, policy: Policy, now: datetime) -> Verdict:
    at = clock_time(window.end, now)
    if window.gpu_peak is not None and window.gpu_peak >= policy.gpu_below:
        return InUse(f"GPU at {window.gpu_peak:.0f} % in the {format_span(policy.window)} up to {at}", window.end)
    if window.gpu_peak is None or window.cpu_milli is None:
        what = "GPU" if window.gpu_peak is None else "CPU"
        return Unseen(f"its {what} use was not measured in the {format_span(policy.window)} up to {at}")
    cores = f"{window.cpu_milli:.0f}m"
    return InUse(f"CPU at {cores} in the {format_span(policy.window)} up to {at}", window.end)


def _last_use(facts: Facts, policy: Policy, now: datetime, measured: datetime) -> tuple[datetime, str]:
    """The newest sign of use other than the measurements, and its description."""
    signs = [(measured, ""), (facts.started, "it started")]
    if facts.checkpoint_at is not None:
        signs.append((facts.checkpoint_at, "a checkpoint was written"))
    if (kernels := facts.kernels) is not None:
        if kernels.last_activity is not None:
            signs.append((kernels.last_activity, "a kernel or terminal was active"))
        if kernels.busy_since_output is not None:
            limit = kernels.busy_since_output + policy.busy_kernels
            signs.append((min(now, limit), "a kernel is busy"))
    if (connection := facts.connection) is not None:
        if connection.acted_at is not None:
            signs.append((connection.acted_at, "a person used it in a browser"))
        if connection.seen_at is not None and connection.acted_at is not None:
            limit = connection.acted_at + policy.open_connections
            signs.append((min(connection.seen_at, limit), "a browser is connected"))
    return max(((min(at, now), what) for at, what in signs), key=lambda sign: sign[0])


def _reasons(facts: Facts, policy: Policy, now: datetime, since: datetime, windows: int) -> str:
    plural = "" if windows == 1 else "s"
    span = format_span(policy.window)
    words = [
        f"GPU below {policy.gpu_below:g} % and CPU below {policy.cpu_below_milli:g}m in each {span} window"
        f" since {clock_time(since, now)} ({windows} window{plural})"
    ]
    if facts.kernels is not None:
        words.append(_kernel_words(facts.kernels, now))
    if facts.connection is not None:
        words.append(_connection_words(facts.connection, policy, now))
    if facts.checkpoint_at is not None:
        words.append(f"last checkpoint at {clock_time(facts.checkpoint_at, now)}")
    return "; ".join(words)


def _kernel_words(kernels: Kernels, now: datetime) -> str:
    if kernels.busy_since_output is not None:
        return f"a kernel is busy without output since {clock_time(kernels.busy_since_output, now)}"
    if kernels.last_activity is None:
        return "no kernel"
    return f"last kernel activity at {clock_time(kernels.last_activity, now)}"


def _connection_words(connection: Connection, policy: Policy, now: datetime) -> str:
    if connection.seen_at is None:
        return "no browser was connected"
    if connection.seen_at < now - FRESH * policy.window - LATE:
        return "no open connection"
    if connection.acted_at is None:
        return "a browser is connected, and not used"
    return f"a browser is connected, last used at {clock_time(connection.acted_at, now)}"


def clock_time(at: datetime, now: datetime) -> str:
    """Format a moment in UTC: "09:10 UTC", with the date if it is on another day than `now`."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"
