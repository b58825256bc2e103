"""Machines where pods are processes: the seed's manifest as typed, a drain, services killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster, find_kubectl

MACHINE = """
apiVersion: moorage.dev/v1alpha1
kind: Machine
metadata:
  name: machine-with-gpus
  labels:
    moorage.dev/machine-group: gpu-machines
spec:
  nodePool:
    - name: {node}
      mode: ready
      taint: false
      machineType:
        - name: compute-xmedium
  machineTypes:
    - name: compute-xmedium
      spec:
        cpu: 100m
        memory: 256Mi
        gpu:
          type: nvidia.com/gpu
          num: 1
          family: ampere
      available: 1
"""
GUEST = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels:
    moorage.dev/machine-group: gpu-machines
    moorage.dev/machine-type: compute-xmedium
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: localhost/host
      command: [sleep, infinity]
"""


def kubectl(cluster: Cluster, *args: str, stdin: str | None = None) -> str:
    program = find_kubectl()
    if program is None:
        pytest.skip("there is no kubectl in KUBEBUILDER_ASSETS or PATH")
    done = subprocess.run(
        [program, "--kubeconfig", str(cluster.kubeconfig), *args],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def usage(cluster: Cluster) -> dict[str, int]:
    rows: list[dict[str, Any]] = json.loads(
        cluster.moor("machines", "gpu-machines", "-o", "json", check=False).stdout or "[]"
    )
    return {} if not rows else rows[0]["usage"] or {}


def until(cluster: Cluster, **want: int) -> None:
    wait_until(f"{want}", lambda: {key: usage(cluster).get(key) for key in want} == want)


def test_the_seeds_manifest_works_as_its_text_says(own_cluster: Cluster) -> None:
    node = "node-1"
    kubectl(own_cluster, "apply", "-f", "-", stdin=MACHINE.format(node=node))
    until(own_cluster, maximum=1, reserved=1, used=0, waiting=0)
    kubectl(own_cluster, "apply", "-f", "-", stdin=GUEST.format(name="ada"))
    until(own_cluster, maximum=1, reserved=0, used=1, waiting=0)
    kubectl(own_cluster, "apply", "-f", "-", stdin=GUEST.format(name="bob"))
    until(own_cluster, maximum=1, reserved=0, used=1, waiting=1)
    shown = own_cluster.moor("machines", "gpu-machines").stdout.split("\n")
    assert shown[1].split()[:6] == ["gpu-machines", "compute-xmedium", "1", "0", "1", "1"]

    (services,) = services_of(own_cluster.home)
    os.kill(services, signal.SIGKILL)  # operator, webhook, extender and server at once
    kubectl(own_cluster, "delete", "pod", "ada")
    until(own_cluster, maximum=1, reserved=0, used=1, waiting=0)
    bob = json.loads(kubectl(own_cluster, "get", "pod", "bob", "-o", "json"))
    assert bob["spec"]["nodeName"] == node

    kubectl(own_cluster, "delete", "pod", "bob")
    until(own_cluster, maximum=1, reserved=1, used=0, waiting=0)
    own_cluster.moor("drain", node, "--timeout", "3m")  # the budget over reservations does not hold it up
    until(own_cluster, reserved=0)
    own_cluster.moor("uncordon", node)
    until(own_cluster, maximum=1, reserved=1)

    kubectl(own_cluster, "delete", "machine", "machine-with-gpus")
    wait_until("no pods to be left", lambda: not kubectl(own_cluster, "get", "pods", "-A", "-o", "name"))
    wait_until(
        "the node to be clean",
        lambda: "moorage.dev/machine" not in kubectl(own_cluster, "get", "node", node, "-o", "json"),
    )


def services_of(home: Path) -> list[int]:
    """The process that runs our services for that data folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"moorage.cli.services" in words and str(home).encode() in words:
                found.append(int(entry.name))
    return found
