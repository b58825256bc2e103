import subprocess
import sys

import pytest

SERVICE = """
import pathlib, signal, sys, threading
from moorage_kube.hangs import HangRecord

signal.signal(signal.SIGTERM, lambda *_: print("asked to stop", flush=True))
note = HangRecord(pathlib.Path(sys.argv[1]), None)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_the_stack_at_sigterm_is_of_the_main_thread_alone(tmp_path):
    """CPython 3.11 crashed at one SIGTERM in about 700 where faulthandler read the frames of threads that ran."""
    words = [sys.executable, "-c", SERVICE, str(tmp_path / "service")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == "ready\n"
        service.terminate()
        assert service.stdout.readline() == "asked to stop\n"
    assert service.returncode == 0
    stack = (tmp_path / "service.hang").read_text()
    assert stack.startswith("Stack (most recent call first)")
    assert stack.count("most recent call first") == 1, stack
