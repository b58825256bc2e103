"""Test a trained network on a folder of pictures: `python3 exam.py PICTURES MODEL`."""

from __future__ import annotations

import sys
from pathlib import Path

from digits import Network, read_picture

folder, model = Path(sys.argv[1]), Path(sys.argv[2])
network = Network.load(model)
pictures = [(int(path.stem[-1]), read_picture(path)) for path in sorted(folder.glob("*.pgm"))]
print(f"{len(pictures)} pictures in {folder}, a network trained for {network.epoch} epochs")
print(f"read correctly: {network.accuracy(pictures):.0%}")
