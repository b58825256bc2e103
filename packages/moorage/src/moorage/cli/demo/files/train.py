"""Train a small neural network on pictures of digits, with checkpoints.

    python3 train.py --epochs 30                    one network
    python3 train.py --epochs 30 --members 2        one network per visible GPU, each in a separate process

The program does not depend on Moorage, and the arithmetic runs on the CPU. It stores its state in
$MOORAGE_CHECKPOINT_DIR when that is set. It saves after every epoch, and ends on SIGTERM. After a restart it
continues with the next epoch. The state of its random numbers is saved too, so the final network is the same as
without the interruption.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from digits import Network, draw

PICTURES = 600
MOST_PAUSE_SECONDS = 120.0

stopping = threading.Event()


def on_sigterm(_signal: int, _frame: object) -> None:
    stopping.set()


def train(epochs: int, seed: int, *, epoch_seconds: float = 0.0, pause_after: int = 0) -> None:
    """Train up to `epochs`, and print the accuracy on pictures that are not in the training data."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES") or "none"
    chance = random.Random(0)
    pictures = [(digit, draw(digit, chance)) for digit in list(range(10)) * (PICTURES // 10)]
    learnt, held = pictures[: PICTURES * 5 // 6], pictures[PICTURES * 5 // 6 :]
    folder = os.environ.get("MOORAGE_CHECKPOINT_DIR")
    path = Path(folder) / f"digits-{seed}.json" if folder else None
    if path and path.exists():
        network = Network.load(path)
        print(f"[seed {seed}] resumed from the checkpoint after epoch {network.epoch}, GPU {gpu}", flush=True)
        pause_after = 0
    else:
        network = Network(seed)
        print(f"[seed {seed}] started, GPU {gpu}", flush=True)
    loss = 0.0
    while network.epoch < epochs:
        begun = time.monotonic()
        loss = network.learn(learnt)
        if path:
            network.save(path)
        if network.epoch % 5 == 0 or network.epoch == epochs:
            print(f"[seed {seed}] epoch {network.epoch}/{epochs} loss {loss:.5f}", flush=True)
        if network.epoch == pause_after:
            stopping.wait(MOST_PAUSE_SECONDS)
        if stopping.is_set() and network.epoch < epochs:
            print(f"[seed {seed}] stopped by a signal after epoch {network.epoch}", flush=True)
            sys.exit(128 + signal.SIGTERM)
        time.sleep(max(0.0, begun + epoch_seconds - time.monotonic()))
    print(f"[seed {seed}] accuracy {network.accuracy(held):.3f} loss {loss:.9f}", flush=True)


def member(epochs: int, seed: int, epoch_seconds: float, gpu: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    signal.signal(signal.SIGTERM, on_sigterm)
    train(epochs, seed, epoch_seconds=epoch_seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a small neural network on pictures of digits.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--members", type=int, default=1, help="networks to train side by side")
    parser.add_argument("--epoch-seconds", type=float, default=0.0, help="shortest time of an epoch")
    parser.add_argument("--pause-after", type=int, default=0, help="epoch after which to wait for SIGTERM")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, on_sigterm)
    if options.members == 1:
        train(options.epochs, options.seed, epoch_seconds=options.epoch_seconds, pause_after=options.pause_after)
        return 0
    gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or "").split(",")
    processes = [
        multiprocessing.Process(
            target=member,
            args=(options.epochs, options.seed + index, options.epoch_seconds, gpus[index % len(gpus)]),
        )
        for index in range(options.members)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode or 0) for process in processes)


if __name__ == "__main__":
    sys.exit(main())
