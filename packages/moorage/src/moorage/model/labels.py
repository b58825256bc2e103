"""The labels of a run that its user sets, and those that Kubernetes or Moorage set."""

from __future__ import annotations

from collections.abc import Mapping

RESERVED_DOMAINS = ("moorage.dev", "kubernetes.io", "k8s.io")  # and all below them
RECOMMENDED_DOMAIN = "app.kubernetes.io"  # Kubernetes asks users to set labels of this one
RESERVED_KEYS = ("job-name", "controller-uid")  # the Job controller sets them
USER_LABELS_MAX = 64  # of a run


def is_reserved_label(key: str) -> bool:
    """Whether Kubernetes or Moorage sets this label itself."""
    domain, slash, _ = key.rpartition("/")
    if not slash:
        return key in RESERVED_KEYS
    if domain == RECOMMENDED_DOMAIN:
        return False
    return any(domain == reserved or domain.endswith(f".{reserved}") for reserved in RESERVED_DOMAINS)


def user_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that a user set, sorted by key; at most USER_LABELS_MAX."""
    chosen = [(key, value) for key, value in sorted(labels.items()) if not is_reserved_label(key)]
    return dict(chosen[:USER_LABELS_MAX])
