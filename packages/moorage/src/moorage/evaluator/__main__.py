"""The evaluating process: it handles one request after the other, until its parent closes the pipe.

`.pool` starts `python -m moorage.evaluator` with a low priority and a memory limit. A request that exceeds its
processor time ends the process (SIGXCPU).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import sys

from moorage.decide.evaluation import shared
from moorage.evaluator.wire import LENGTH, MEMORY_BYTES, Answer, Request, error_of, frame
from moorage_kube.errors import MoorageError
from moorage_kube.parent import end_with_parent

NICENESS = 10  # the services go first where a processor is short


def answer(request: Request) -> Answer:
    """Carry out a request. A MoorageError becomes an answer."""
    _limit_time(request.seconds)
    with shared(request.budget) as budget:
        try:
            value = request.function()(*request.arguments, **request.named)
        except MoorageError as error:
            return Answer(error=error_of(error), budget=budget)
        except MemoryError:
            return Answer(is_last=True)
    return Answer(value=value, budget=budget)


def _limit_time(seconds: int) -> None:
    """Let the kernel end this process after this many more seconds of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the parent says when to end
    end_with_parent(signal.SIGKILL)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with answers
    os.nice(NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, hard))
    while head := requests.read(LENGTH.size):
        given = answer(pickle.loads(requests.read(LENGTH.unpack(head)[0])))
        try:
            written = frame(given)
        except MemoryError:
            given = Answer(is_last=True)
            written = frame(given)
        answers.write(written)
        answers.flush()
        if given.is_last:
            return


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the parent has ended, or does not read any more
        main()
