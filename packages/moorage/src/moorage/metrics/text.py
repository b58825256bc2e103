"""Prometheus' text format: the parts of a line.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable


def escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def labels_text(labels: Iterable[tuple[str, str]]) -> str:
    """Labels in the format between the braces of a sample."""
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels])


def braced(labels: str) -> str:
    """Labels in braces; "" if there are no labels."""
    return f"{{{labels}}}" if labels else ""


def _escaped(value: str) -> str:
    return escaped_help(value).replace('"', r"\"")
