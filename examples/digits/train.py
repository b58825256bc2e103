"""Train a small neural network on scikit-learn's handwritten digits, with checkpoints.

    python train.py --epochs 120                    one model
    python train.py --epochs 120 --members 2        one model per visible GPU, each in a process of its own

Nothing here knows Moorage: it keeps its state in $MOORAGE_CHECKPOINT_DIR when that is set, saves
after every epoch, and on SIGTERM saves once more and leaves. Started again it goes on with the next
epoch, and since the network's random state is part of the checkpoint, it ends with exactly the
network that it would have become undisturbed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

stopping = False


def on_sigterm(_signal: int, _frame: object) -> None:
    global stopping
    stopping = True


def load(path: Path | None) -> tuple[int, MLPClassifier] | None:
    if path is None or not path.exists():
        return None
    with path.open("rb") as file:
        return pickle.load(file)


def save(path: Path | None, epoch: int, model: MLPClassifier) -> None:
    if path is None:
        return
    scratch = path.with_suffix(".tmp")
    with scratch.open("wb") as file:
        pickle.dump((epoch, model), file)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)  # a kill leaves the old checkpoint or the new one, never half of one


def train(epochs: int, seed: int, folder: Path | None, epoch_seconds: float = 0.0) -> float:
    """Train to `epochs` and return the accuracy on the held-out fifth of the digits."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "") or "none"
    images, digits = load_digits(return_X_y=True)
    seen, held, seen_digits, held_digits = train_test_split(
        images / 16.0, digits, test_size=0.2, random_state=0, stratify=digits
    )
    path = folder / f"digits-{seed}.pkl" if folder else None
    resumed = load(path)
    if resumed:
        done, model = resumed
        print(f"[seed {seed}] resumed from the checkpoint after epoch {done}, GPU {gpu}", flush=True)
    else:
        done, model = 0, MLPClassifier((384, 192), random_state=seed, learning_rate_init=3e-4, batch_size=32)
        print(f"[seed {seed}] started, GPU {gpu}", flush=True)
    for epoch in range(done + 1, epochs + 1):
        begun = time.monotonic()
        model.partial_fit(seen, seen_digits, classes=np.arange(10))
        save(path, epoch, model)
        if epoch % 10 == 0 or epoch == epochs:
            print(f"[seed {seed}] epoch {epoch}/{epochs} loss {model.loss_:.5f}", flush=True)
        if stopping and epoch < epochs:
            print(f"[seed {seed}] told to stop; saved after epoch {epoch}", flush=True)
            sys.exit(128 + signal.SIGTERM)
        time.sleep(max(0.0, begun + epoch_seconds - time.monotonic()))
    accuracy = float(model.score(held, held_digits))
    print(f"[seed {seed}] accuracy {accuracy:.6f} loss {model.loss_:.9f}", flush=True)
    return accuracy


def member(epochs: int, seed: int, folder: Path | None, gpu: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    signal.signal(signal.SIGTERM, on_sigterm)
    train(epochs, seed, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--members", type=int, default=1, help="models to train side by side")
    parser.add_argument("--epoch-seconds", type=float, default=0.0, help="shortest time of an epoch")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, on_sigterm)
    folder = Path(os.environ["MOORAGE_CHECKPOINT_DIR"]) if "MOORAGE_CHECKPOINT_DIR" in os.environ else None
    if options.members == 1:
        train(options.epochs, options.seed, folder, options.epoch_seconds)
        return 0
    gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or "").split(",")
    processes = [
        multiprocessing.Process(
            target=member, args=(options.epochs, options.seed + index, folder, gpus[index % len(gpus)])
        )
        for index in range(options.members)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode or 0) for process in processes)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    sys.exit(main())
