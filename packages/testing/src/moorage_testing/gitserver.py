"""A repository of git over http, as plain files: the simplest server that git can clone from."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Repository:
    """A repository with one branch, `main`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str) -> str:
        person = {f"GIT_{who}_{key}": "ada@lab" for who in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
        env = {**os.environ, **person, "GIT_CONFIG_GLOBAL": os.devnull}
        done = subprocess.run(
            ["git", "-C", str(self.folder), *words], env=env, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, files: Mapping[str, str]) -> str:
        """Commit files to the branch; return the commit."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "Change files")
        self.git("update-server-info")
        return self.git("rev-parse", "HEAD")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def git_server(folder: Path) -> Iterator[Repository]:
    """Yield a repository in a new folder, which is served while the block runs."""
    repository = Repository(folder / "repo")
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        repository.url = f"http://127.0.0.1:{server.server_address[1]}/repo/.git"
        yield repository
        server.shutdown()
