"""Find a program, with the error messages of Go and containerd."""

from __future__ import annotations

import os


class StartError(Exception):
    """A container's process could not be started; the text is the message for the container's status."""


def find_program(program: str, path: str) -> str:
    """Find a program like Go's exec.LookPath, with its error messages."""
    if "/" in program:
        if not os.path.exists(program):
            raise StartError(f'exec: "{program}": stat {program}: no such file or directory')
        if os.path.isdir(program) or not os.access(program, os.X_OK):
            raise StartError(f'exec: "{program}": permission denied')
        return program
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", program)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise StartError(f'exec: "{program}": executable file not found in $PATH')
