"""`make demo`: the main job of Moorage, from an empty machine to a resumed training.

Types the commands that three people on a shared cluster would type, and checks what they see. Exit
code 0 only when the disturbed training ended with exactly the network of the undisturbed one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).parent
EPOCHS = 80
PATIENCE_SECONDS = 300.0  # bounds a hang on a machine that is busy
THREADS = ["--env", "OMP_NUM_THREADS=1", "--env", "OPENBLAS_NUM_THREADS=1"]


class Demo:
    def __init__(self, data: Path, ports: list[str]) -> None:
        self.data = data
        self.ports = ports
        self.env = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        self.env |= {"MOORAGE_DATA": str(data), "MOORAGE_KUBECONFIG": str(data / "kubeconfig")}
        # as after `. .venv/bin/activate`: jobs run in the environment of the one who submits them
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.env.get('PATH', os.defpath)}"
        self.started = time.monotonic()
        self.step_number = 0

    def step(self, sentence: str) -> None:
        self.step_number += 1
        elapsed = time.monotonic() - self.started
        print(f"\n\033[1m[{elapsed:5.1f} s] {self.step_number}. {sentence}\033[0m", flush=True)

    def moor(self, *args: str, show: bool = True, check: bool = True) -> str:
        if show:
            print(f"$ moor {' '.join(args)}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "moorage.cli.main", *args],
            env=self.env,
            cwd=HERE,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if show else subprocess.PIPE,
            check=False,
        )
        if show and done.stdout.strip():
            print("\n".join(f"  {line}" for line in done.stdout.rstrip().splitlines()), flush=True)
        if check and done.returncode != 0:
            fail(f"`moor {' '.join(args)}` ended with exit code {done.returncode}\n{done.stderr or ''}")
        return done.stdout

    def let_in(self, *people: str) -> None:
        """What an administrator does once: these people may work in the namespace `default`."""
        asyncio.run(self._bind(people))
        print(f"  {', '.join(people)} may work here: the role `edit` is bound to them", flush=True)

    async def _bind(self, people: tuple[str, ...]) -> None:
        from moorage.errors import AlreadyExists
        from moorage.kube.client import KubeClient
        from moorage.model.manifests import ROLEBINDINGS
        from moorage.model.people import subjects_of

        binding = {
            "metadata": {"name": "team"},
            "subjects": [subject for person in people for subject in subjects_of(person)],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        }
        async with KubeClient.from_kubeconfig(self.data / "kubeconfig") as api:
            with contextlib.suppress(AlreadyExists):
                await api.create(ROLEBINDINGS, binding, "default")

    def run(self, name: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.moor("show", name, "-o", "json", show=False))
        return found

    def wait(self, what: str, name: str, wanted: set[str]) -> None:
        """Return when the run's state is one of `wanted`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        state = ""
        while time.monotonic() < deadline:
            state = str(self.run(name)["state"])
            if state in wanted:
                return
            if state in {"Failed", "OOMKilled", "Cancelled"}:
                self.moor("show", name)
                self.moor("logs", name)
                fail(f"{name} is {state}")
            time.sleep(0.3)
        fail(f"waited {PATIENCE_SECONDS:g} s for {what}; {name} is {state}")

    def wait_for_log(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.moor("logs", name, show=False, check=False)):
                return found[0]
            time.sleep(0.3)
        return fail(f"the log of {name} never showed {pattern!r}")


def fail(sentence: str) -> NoReturn:
    print(f"demo failed: {sentence}", file=sys.stderr)
    sys.exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--port", default=None, help="port of the web page (default 8080)")
    parser.add_argument("--api-port", default=None, help="port of the Kubernetes API (default 6443)")
    options = parser.parse_args()
    ports = [
        word
        for flag in ("port", "api_port")
        if (value := getattr(options, flag)) is not None
        for word in (f"--{flag.replace('_', '-')}", value)
    ]
    demo = Demo(options.data.absolute(), ports)
    tag = time.strftime("%H%M%S")
    train, ensemble, baseline = f"train-{tag}", f"ensemble-{tag}", f"baseline-{tag}"

    demo.step("A cluster on this machine: two nodes of two (simulated) GPUs each, and our services")
    if demo.moor("status", "-o", "json", show=False, check=False).find('"running": true') >= 0:
        print("  it is running already and is used as it is")
        for node in ("node-1", "node-2"):
            demo.moor("uncordon", node, show=False)
    else:
        demo.moor("up", "--nodes", "2", "--gpus", "2", "--gpu-type", "a100", *ports)

    demo.let_in("ada", "grace", "linus")

    demo.step("Ada trains on one GPU, with checkpoints; a dry run first says where it would land")
    submit = [
        "run",
        "--as",
        "ada",
        "--gpus",
        "1",
        "--gpu-type",
        "a100",
        "--cpu",
        "1",
        "--memory",
        "1Gi",
        "--time",
        "1h",
    ]
    submit += ["--checkpoint", f"{train}-ckpt", *THREADS, "--name", train]
    command = ["--", "python", "train.py", "--epochs", str(EPOCHS)]
    begun = time.monotonic()
    dry = subprocess.run(
        [sys.executable, "-m", "moorage.cli.main", *submit, "--dry-run", *command],
        env=demo.env,
        cwd=HERE,
        text=True,
        capture_output=True,
        check=False,
    )
    print("  " + "\n  ".join(dry.stderr.rstrip().splitlines()))
    if dry.returncode != 0:
        fail("the dry run was refused")
    # where commands take seconds, her training is slowed too: it still runs when its node is drained
    epoch_seconds = (time.monotonic() - begun) / 4
    demo.moor(*submit, *command, "--epoch-seconds", f"{epoch_seconds:.2f}")

    demo.step("Grace trains the same network and a second one on two GPUs; Linus trains a third without any")
    demo.moor(
        "run", "--as", "grace", "--gpus", "2", "--gpu-type", "a100", "--cpu", "2", "--memory", "2Gi",
        "--time", "1h", *THREADS, "--name", ensemble,
        "--", "python", "train.py", "--epochs", str(EPOCHS), "--members", "2",
    )  # fmt: skip
    demo.moor(
        "run", "--as", "linus", "--cpu", "1", "--memory", "1Gi", *THREADS, "--name", baseline,
        "--", "python", "train.py", "--epochs", "20", "--seed", "7",
    )  # fmt: skip
    demo.wait("the training to run", train, {"Running"})
    demo.moor("gpus")

    demo.step("Half-way through, the node under Ada's training is drained for maintenance")
    said = demo.wait_for_log(train, rf"epoch {EPOCHS // 2}/")
    print(f"  her log says: {said}")
    node = str(demo.run(train)["node"])
    demo.moor("drain", node)
    demo.moor("jobs")

    demo.step("Her training is started again by itself; while the other node is full, `explain` says who holds it")
    demo.moor("explain", train, check=False)
    demo.wait("the training to resume and end", train, {"Succeeded"})
    resumed = demo.wait_for_log(train, r"resumed from the checkpoint after epoch \d+")
    demo.moor("show", train)
    moved = str(demo.run(train)["node"])
    print(f"  {resumed}; it moved from {node} to {moved}")
    if moved == node:
        fail("the training did not move to the other node")
    demo.moor("uncordon", node)

    demo.step("Was anything lost? The undisturbed twin was trained by Grace with the same seed")
    demo.wait("the undisturbed training to end", ensemble, {"Succeeded"})
    pattern = r"\[seed 0\] accuracy ([\d.]+) loss ([\d.]+)"
    results = [re.search(pattern, demo.moor("logs", name, show=False)) for name in (train, ensemble)]
    if not all(results):
        fail("a training printed no accuracy")
    disturbed, undisturbed = (found.groups() for found in results if found)
    print(f"  drained and resumed: accuracy {disturbed[0]}, loss {disturbed[1]}")
    print(f"  undisturbed:         accuracy {undisturbed[0]}, loss {undisturbed[1]}")
    if disturbed != undisturbed:
        fail("the resumed training reached another result than the undisturbed one")

    demo.step("Who used which GPU for how long")
    demo.wait("the evaluation to end", baseline, {"Succeeded"})
    demo.moor("top", "--by", "gpu")
    demo.moor("top")

    status = json.loads(demo.moor("status", "-o", "json", show=False))
    print(f"\nDone in {time.monotonic() - demo.started:.0f} s. The platform is still running:")
    print(f"  web page  {status['page']}")
    print(f"  try       MOORAGE_DATA={demo.data} {Path(sys.executable).with_name('moor')} jobs")
    print(f"  stop      {Path(sys.executable).with_name('moor')} down --data {demo.data}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
