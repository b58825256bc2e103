"""What one release leaves behind, and what the other must make of it."""

from __future__ import annotations

from typing import Any

from releases import Process, StepFailed

POLICY: dict[str, Any] = {  # each field but rate as it is not by default
    "retries": 2,
    "loss_limit": 7,
    "backoff_seconds": 3.0,
    "max_backoff_seconds": 90.0,
    "time_seconds": 45.0,
    "lease_seconds": 30.0,
    "memory_bytes": 2**30,
    "max_memory_bytes": 2**33,
    "idempotent": True,
    "batch_items": 3,
    "limits": {"mysql": 1},
}
ITEMS = 6


def write(release: Process) -> None:
    """A map half done with two items in a worker's hands, a failure, output, people, their traces, GPU use."""
    of = release.do("create_map", "half", ITEMS, POLICY)
    assert release.do("exchange", "half", "w1", 1, want=1)["items"] == [[0, 1]]
    assert release.do("exchange", "half", "w1", 2, want=1, done=[[0, 1]])["items"] == [[1, 1]]
    assert release.do("exchange", "half", "w2", 1, want=1)["items"] == [[2, 1]]
    release.do("create_map", "broken", 1, {"retries": 0, "rate": 100.0})
    release.do("exchange", "broken", "w1", 1, want=1)
    release.do("exchange", "broken", "w1", 2, failed=[[0, 1]])
    release.do("add_output", of, "epoch 1\n")
    release.do("secret")
    release.do("log_in", "token-1", "ada")
    release.do("log_in", "token-2", "bob")
    release.do("add_code", "code-1")
    release.do("note", "ada", "created run lab/train")
    release.do("note", "bob", "deleted map lab/old")
    release.do("hold", "pod-1")
    release.do("hold", "pod-2", 2)


def read(release: Process) -> dict[str, Any]:
    """All that `write` left, as a release reads it; changes nothing."""
    steps: dict[str, tuple[Any, ...]] = {
        "policy": ("policy", "half"),
        "rated": ("policy", "broken"),
        "counts": ("counts", "half"),
        "results": ("results", "half"),
        "failure": ("failure", "broken", 0),
        "outputs": ("outputs", 1),
        "secret": ("secret",),
        "ada": ("whose", "token-1"),
        "bob": ("whose", "token-2"),
        "stranger": ("whose", "token-3"),
        "audit": ("audit",),
        "held": ("held",),
    }
    return {name: release.do(*step) for name, step in steps.items()}


def finish(release: Process) -> None:
    """The workers answer what they held, then do the rest; each item counts once."""
    held, granted, request = {"w1": [[1, 1]], "w2": [[2, 1]]}, 3, 2
    while any(held.values()):
        request += 1
        for session, items in held.items():
            reply = release.do("exchange", "half", session, request, want=1, done=items)
            assert reply["refused"] == []
            granted += len(reply["items"])
            held[session] = reply["items"]
    assert (granted, reply["state"]) == (ITEMS, "finished")
    again = release.do("exchange", "half", "w1", request + 1, done=[[1, 1], [0, 2]])
    assert again["refused"] == [[0, 2]]  # a fence that was never given; the other is known as answered
    assert release.do("results", "half") == [[item, {"of": item}] for item in range(ITEMS)]
    counts = release.do("counts", "half")
    assert (counts["done"], counts["granted"], counts.get("leases", 0)) == (ITEMS, ITEMS, 0)


def use_everything(release: Process, name: str) -> None:
    """Write once more to each table; `name` is new."""
    of = release.do("create_map", name, 2, POLICY)
    assert release.do("policy", name) == POLICY | {"rate": None}
    release.do("pause", name)
    assert release.do("exchange", name, "w", 1, want=2)["items"] == []
    release.do("resume", name)
    assert release.do("exchange", name, "w", 2, want=1)["items"] == [[0, 1]]
    assert release.do("exchange", name, "w", 3, want=1, done=[[0, 1]])["items"] == [[1, 1]]
    assert release.do("exchange", name, "w", 4, failed=[[1, 1]])["refused"] == []
    release.do("tick", 1)
    release.do("add_output", of, name)
    assert release.do("outputs", of) == [name]
    release.do("log_in", f"token-{name}", "eve")
    assert release.do("whose", f"token-{name}")[0] == "eve"
    release.do("add_code", f"code-{name}")
    assert release.do("take_code", f"code-{name}") == f"code-{name}"
    assert release.do("take_code", f"code-{name}") is None
    release.do("note", "eve", name)
    assert release.do("audit")[0] == ["eve", name]
    release.do("hold", f"pod-{name}", 1)
    assert any(row[0] == f"pod-{name}" for row in release.do("held"))


def erase(release: Process, name: str) -> None:
    """Take away what `use_everything` of the other release made."""
    assert release.do("policy", name) == POLICY | {"rate": None}
    release.do("delete_map", name)
    assert release.do("log_out", f"token-{name}")
    assert release.do("whose", f"token-{name}") is None


__all__ = ["ITEMS", "POLICY", "StepFailed", "erase", "finish", "read", "use_everything", "write"]
