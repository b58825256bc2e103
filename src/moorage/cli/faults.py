"""Faults of an object that options describe, named by those options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from moorage.actions.objects import InvalidObject, describe_fault
from moorage.cli.session import Problems


@contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """Name each field of an InvalidObject by its option, each fault on a line of its own. Raises Problems."""
    try:
        yield
    except InvalidObject as error:
        lines = (describe_fault(fault, options.get(fault.field, fault.field)) for fault in error.faults)
        raise Problems([(line, None) for line in lines]) from error
