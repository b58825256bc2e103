"""Fill a dataset while its filler is killed, then read it from many pods: every checksum is checked.

    python benchmarks/dataset_fill.py --files 10000 --bytes 5e9 --kills 5 --pods 30 --nodes 3

A web server on this machine serves the files; `moor up` starts a local cluster of its own; the filler's process is
sent SIGKILL each time that it asks for more than another share of the bytes. Then an Indexed Job of read-only pods
checks each file's SHA-256 against the sums noted when the files were made, three pods each file, and tries to
write.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKERS = 3  # pods that check each file
BLOCK = 1 << 20
HERE = os.path.abspath(__file__)


def make_files(folder: Path, sums: Path, *, files: int, total: int, seed: int) -> int:
    """Files of very different sizes, `total` bytes in all; writes `sums` as sha256sum does. Returns the bytes."""
    chance = random.Random(seed)
    weights = [chance.lognormvariate(0, 1.5) for _ in range(files)]
    scale = total / sum(weights)
    noise = chance.randbytes(BLOCK * 4)
    written = 0
    with sums.open("w") as out:
        for number, weight in enumerate(weights):
            size = max(1, int(weight * scale))
            path = folder / f"part-{number % 37:02d}" / f"{number:06d}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            running = hashlib.sha256()
            with path.open("wb") as file:
                left = size
                head = f"{number} ".encode()
                while left > 0:
                    start = chance.randrange(BLOCK * 3)
                    piece = (head + noise[start : start + BLOCK])[: min(left, BLOCK)]
                    file.write(piece)
                    running.update(piece)
                    left -= len(piece)
            written += size
            out.write(f"{running.hexdigest()}  {path.relative_to(folder)}\n")
    return written


def serve(folder: str, port: str, volumes: str, kills: str) -> None:
    """A web server with listings of folders, ranges and ETags, which kills who asks.

    The filler on these volumes is sent SIGKILL when it asks for more than another share of the bytes; a line is
    printed each time. So it has always something left to do, however fast it is.
    """
    from aiohttp import web

    total = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    shares = [total * share // (int(kills) + 1) for share in range(1, int(kills) + 1)]
    answered = 0

    @web.middleware
    async def kill(request: web.Request, handler: Any) -> Any:
        if shares and answered >= shares[0]:
            for pid in fillers(Path(volumes)):
                os.kill(pid, signal.SIGKILL)
                print(f"killed after {answered:,} bytes", flush=True)
                shares.pop(0)
                break
        return await handler(request)

    async def count(request: web.Request, response: web.StreamResponse) -> None:
        nonlocal answered
        if request.method == "GET" and isinstance(response, web.FileResponse):
            answered += response.content_length or 0

    app = web.Application(middlewares=[kill])
    app.on_response_prepare.append(count)
    app.router.add_static("/files", folder, show_index=True)
    web.run_app(app, host="127.0.0.1", port=int(port), print=None, access_log=None)


def check(root: Path, sums: Path, pods: int) -> None:
    """What each pod does: its share of the files, against the sums."""
    index = int(os.environ["JOB_COMPLETION_INDEX"])
    try:
        (root / "written").write_text("x")
        sys.exit("the dataset could be written to")
    except OSError as error:
        refused = type(error).__name__
    files = bad = size = 0
    groups = max(1, pods // CHECKERS)
    for number, line in enumerate(sums.read_text().splitlines()):
        if number % groups != index % groups:
            continue
        digest, path = line.split("  ", 1)
        running = hashlib.sha256()
        with (root / path).open("rb") as file:
            while piece := file.read(BLOCK):
                running.update(piece)
                size += len(piece)
        files += 1
        bad += running.hexdigest() != digest
    node = os.environ.get("NODE", "")
    print(json.dumps({"index": index, "node": node, "files": files, "bytes": size, "bad": bad, "write": refused}))
    sys.exit(1 if bad else 0)


def fillers(volumes: Path) -> Iterator[int]:
    """Processes of `moorage.filler fill` that belong to the cluster with these volumes."""
    home = str(volumes.parent)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[1:4] == [b"-m", b"moorage.filler", b"fill"] and home in (entry / "mountinfo").read_text():
                yield int(entry.name)
        except OSError:
            continue


@contextmanager
def cluster(home: Path, nodes: int) -> Iterator[dict[str, str]]:
    moor = [sys.executable, "-m", "moorage.cli.main"]
    up = ["up", "--data", str(home), "--nodes", str(nodes), "--port", "0", "--api-port", "0"]
    subprocess.run([*moor, *up], check=True, stdout=subprocess.DEVNULL)
    try:
        yield os.environ | {"MOORAGE_KUBECONFIG": str(home / "kubeconfig"), "NO_COLOR": "1"}
    finally:
        subprocess.run([*moor, "down", "--data", str(home)], check=False, stdout=subprocess.DEVNULL)


def moor(env: dict[str, str], *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "moorage.cli.main", *args], env=env, text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"moor {' '.join(args)}: {done.stdout}{done.stderr}")
    return done.stdout


async def read_everywhere(kubeconfig: Path, sums: Path, *, pods: int, seconds: float) -> list[dict[str, Any]]:
    """Run the reading pods, spread over the nodes; what each printed."""
    from moorage.model.dataset import uses_labels
    from moorage_kube.clock import SYSTEM
    from moorage_kube.remote.client import KubeClient
    from moorage_kube.resources import JOBS, PODS

    labels = {"benchmark": "dataset-read"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "read", "namespace": "default"},
        "spec": {
            "completionMode": "Indexed",
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": labels | uses_labels({"bench": "default"})},
                "spec": {
                    "restartPolicy": "Never",
                    "topologySpreadConstraints": [spread],
                    "volumes": [
                        {"name": "data", "persistentVolumeClaim": {"claimName": "dataset-bench", "readOnly": True}}
                    ],
                    "containers": [
                        {
                            "name": "main",
                            "image": "localhost/host",
                            "command": [sys.executable, HERE, "--check", "/data"],
                            "args": ["--sums", str(sums), "--pods", str(pods)],
                            "resources": {"limits": {"cpu": "10m", "memory": "256Mi"}},
                            "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                            "volumeMounts": [
                                {"name": "data", "mountPath": "/data", "subPath": "data", "readOnly": True}
                            ],
                        }
                    ],
                },
            },
        },
    }  # fmt: skip
    async with KubeClient.from_kubeconfig(kubeconfig) as api:
        await api.create(JOBS, job, "default")
        end = SYSTEM.monotonic() + seconds
        while SYSTEM.monotonic() < end:
            status = (await api.get(JOBS, "read", "default")).get("status") or {}
            if status.get("succeeded") == pods or status.get("failed"):
                break
            await SYSTEM.sleep(0.5)
        found = []
        for pod in (await api.list(PODS, "default", label_selector="benchmark=dataset-read")).items:
            text = b""
            async for chunk in api.logs(pod["metadata"]["name"], "default", tail_lines=1):
                text += chunk
            found.append(json.loads(text or b'{"bad": 1, "files": 0, "bytes": 0, "node": "?"}'))
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--bytes", type=float, default=5e9)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--pods", type=int, default=30)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--work", type=Path, default=None, help="folder for files and cluster (default: a new one)"
    )
    parser.add_argument("--serve", nargs=4, metavar=("FOLDER", "PORT", "VOLUMES", "KILLS"), help=argparse.SUPPRESS)
    parser.add_argument("--check", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sums", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(*given.serve)
        return 0
    if given.check:
        check(given.check, given.sums, given.pods)
        return 0
    with tempfile.TemporaryDirectory(prefix="moor-", dir=given.work) as folder:
        return measure(Path(folder), given)


def measure(folder: Path, given: argparse.Namespace) -> int:
    import asyncio
    import socket

    sums, www, home = folder / "SHA256SUMS", folder / "www", folder / "home"
    www.mkdir()
    started = time.monotonic()
    total = make_files(www, sums, files=given.files, total=int(given.bytes), seed=given.seed)
    print(f"made {given.files:,} files, {total:,} bytes in {time.monotonic() - started:.0f} s", flush=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [str(www), str(port), str(home / "volumes"), str(given.kills)]
    server = subprocess.Popen([sys.executable, __file__, "--serve", *words], stdout=subprocess.PIPE, text=True)
    try:
        with cluster(home, given.nodes) as env:
            started = time.monotonic()
            size = str(int(total * 1.2) + (64 << 20))
            url = f"http://127.0.0.1:{port}/files/"
            moor(env, "dataset", "create", "bench", "--source", url, "--size", size)
            while True:
                one = json.loads(moor(env, "dataset", "show", "bench", "-o", "json"))
                if one["phase"] in ("Ready", "Failed"):
                    break
                time.sleep(1)
            took = time.monotonic() - started
            server.terminate()
            kills = len(server.communicate()[0].splitlines())
            print(f"{one['phase']}: {one['files']:,} files, {one['bytes']:,} bytes in {took:.0f} s", flush=True)
            print(f"filler killed {kills} times, {one['attempts']} attempts", flush=True)
            if one["phase"] != "Ready":
                print(one["reason"], one["message"])
                return 1
            lines = sorted(sums.read_text().splitlines(), key=lambda line: line[66:].encode())
            want = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
            started = time.monotonic()
            read = asyncio.run(read_everywhere(home / "kubeconfig", sums, pods=given.pods, seconds=1800))
            bad, files = sum(pod["bad"] for pod in read), sum(pod["files"] for pod in read)
            nodes = sorted({pod["node"] for pod in read})
            took = time.monotonic() - started
            gib = sum(pod["bytes"] for pod in read) / 2**30
            print(f"{len(read)} pods on {len(nodes)} nodes read {gib:.1f} GiB in {took:.0f} s", flush=True)
            print(f"checksums: {files:,} checked, {bad} wrong; of the whole: {one['checksum'] == want}")
            print(f"writing was refused in {sum('write' in pod for pod in read)} of {len(read)} pods")
            good = not bad and one["checksum"] == want and files >= given.files and len(nodes) == given.nodes
            return 0 if good and kills == given.kills else 1
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
