"""How to provide credentials for a bucket or a web server: the Secret of a dataset, and its keys."""

from __future__ import annotations

_KEYS = {
    "s3": "--from-env AWS_ACCESS_KEY_ID --from-env AWS_SECRET_ACCESS_KEY",
    "gs": "--from-file key.json=key.json",
    "https": "MOORAGE_HTTP_AUTHORIZATION",
}


def secret_command(name: str, namespace: str, url: str) -> str:
    """The command that creates a Secret with the credentials for a source."""
    scheme = url.partition("://")[0]
    keys = _KEYS.get(scheme, _KEYS["https"])
    return f"moor secret create {name} -n {namespace} {keys}"


def after_denial(secret: str) -> str:
    """The check to make when a source refused the credentials. `secret`: name of the Secret, or ""."""
    if secret:
        return f"it refused the keys of Secret {secret!r}, or they may not read it"
    return "the dataset names no Secret with credentials"
