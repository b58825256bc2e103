"""A real Prometheus for tests, from PATH, on a free port, with a scrape each second."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from moorage_kube.errors import NotReady
from moorage_kube.testing.ports import free_ports
from moorage_kube.testing.waiting import wait_until

QUICK = "1s"


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs."""

    url: str

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer of its API. Raises OSError for an invalid query."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(query)}") as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        """Return the current series of an expression."""
        return list(self.ask("query", query=expression)["result"])


@contextlib.contextmanager
def running_prometheus(configuration: Path, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with a configuration, but with a scrape each second.

    Raises NotReady if it is not installed.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise NotReady("prometheus is not on PATH", hint="install it: apt-get install prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    config = yaml.safe_load(configuration.read_text())
    config["global"] = {"scrape_interval": QUICK, "evaluation_interval": QUICK}
    for path in config["rule_files"]:
        rules = yaml.safe_load(Path(path).read_text())
        for group in rules["groups"]:
            group["interval"] = QUICK
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    config["rule_files"] = [str(folder / "rules.yaml")]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    argv = [program, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        made = Prometheus(f"http://127.0.0.1:{port}")

        def is_ready() -> bool | None:
            if process.poll() is not None:
                raise AssertionError(f"prometheus ended: {(folder / 'log').read_text()}")
            with contextlib.suppress(OSError), urlopen(f"{made.url}/-/ready"):
                return True
            return None

        wait_until("prometheus to be ready", is_ready)
        yield made
    finally:
        process.terminate()
        process.wait()
