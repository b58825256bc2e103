"""Limits for JSON and YAML documents from users."""

from __future__ import annotations

from moorage_kube.errors import DocumentError

BYTES_MAX = 3 * 1024 * 1024  # kube-apiserver's limit on the body of a request
NESTING_MAX = 100  # levels; Kubernetes' own objects have some 30, the schemas of its largest CRDs some 60


def bytes_of(data: bytes | str) -> bytes:
    """Return the document as UTF-8 bytes. Raises DocumentError."""
    try:
        return data if isinstance(data, bytes) else data.encode()
    except UnicodeEncodeError as error:
        raise DocumentError(f"the text is not UTF-8: {error}") from None


def text_of(data: bytes | str) -> str:
    """Return the document as a string without its byte order mark. Raises DocumentError."""
    try:
        return data.decode("utf-8-sig") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        raise DocumentError(f"the text is not UTF-8: {error}") from None


def check_length(data: bytes | str, bytes_max: int) -> None:
    """Raise DocumentError for a document that is too long."""
    if len(data) > bytes_max:
        raise DocumentError(f"the document is longer than {bytes_max:,} bytes")
