"""Two processes of `moor server` on one folder, as after an eviction: the second waits, and takes over."""

from __future__ import annotations

import http.client
import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import local_cluster
from moorage_testing.replicas import Replica

pytestmark = pytest.mark.processes


def ask(replica: Replica, path: str) -> tuple[int, Any]:
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", replica.port, timeout=30)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
    except OSError:
        return 0, b""


def test_a_second_server_on_a_folder_waits_and_takes_over_when_the_first_is_killed(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "d") as cluster:
        first, second = (Replica(tmp_path, 1, cluster.kubeconfig, "") for _ in range(2))  # of one folder
        try:
            first.start()
            wait_until("the first server", first.is_ready)
            second.start()
            wait_until("the second server to live", lambda: ask(second, "/healthz")[0] == 200)
            status, body = ask(second, "/readyz")
            assert status == 503
            assert json.loads(body)["message"].startswith("another server uses the folder of databases: ")
            first.send(signal.SIGSTOP)
            assert ask(second, "/readyz")[0] == 503  # its lock is kept
            first.stop()
            wait_until("the second server", second.is_ready)
        finally:
            first.stop()
            second.stop()
