"""Pictures of digits, and a small neural network that recognizes them. It needs only the standard library.

python3 digits.py FOLDER COUNT      draw test pictures; the name of each picture ends with its digit
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
from operator import mul
from pathlib import Path

SIDE = 8  # pixels
HIDDEN = 24  # units of the hidden layer
RATE = 0.05

FONT = """
.###. ..#.. .###. ##### ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# ...#. ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ..#.. .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ...#. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# .#... #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..
"""
GLYPHS = [[row.split()[digit] for row in FONT.split("\n") if row] for digit in range(10)]

Picture = list[float]


def draw(digit: int, chance: random.Random, noise: float = 0.2) -> Picture:
    """Draw a digit with a small shift and noise; the pixels row by row, from 0.0 to 1.0."""
    right, down, ink = chance.randint(0, SIDE - 5), chance.randint(0, SIDE - 7), chance.uniform(0.6, 1.0)
    pixels = [abs(chance.gauss(0.0, noise)) for _ in range(SIDE * SIDE)]
    for y, row in enumerate(GLYPHS[digit]):
        for x, mark in enumerate(row):
            if mark == "#":
                pixels[(y + down) * SIDE + x + right] += ink
    return [min(1.0, pixel) for pixel in pixels]


def write_picture(path: Path, picture: Picture) -> None:
    """Write a picture as a portable graymap (PGM), which most viewers open."""
    grey = [str(round(255 * pixel)) for pixel in picture]
    rows = [" ".join(grey[at : at + SIDE]) for at in range(0, len(grey), SIDE)]
    path.write_text("\n".join(["P2", f"{SIDE} {SIDE}", "255", *rows, ""]))


def read_picture(path: Path) -> Picture:
    return [int(word) / 255 for word in path.read_text().split()[4:]]


class Network:
    """Two layers, trained picture by picture.

    Its whole state is in a JSON file: weights, epochs, state of the random generator.
    """

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        inputs = SIDE * SIDE
        self.epoch = 0
        self.hidden = [[chance.gauss(0, 1 / 8) for _ in range(inputs)] for _ in range(HIDDEN)]
        self.output = [[chance.gauss(0, 1 / 5) for _ in range(HIDDEN)] for _ in range(10)]
        self.chance = chance

    def answer(self, picture: Picture) -> tuple[list[float], list[float]]:
        """The values of the hidden layer, and the probability of each digit."""
        hidden = [math.tanh(sum(map(mul, weights, picture))) for weights in self.hidden]
        powers = [math.exp(sum(map(mul, weights, hidden))) for weights in self.output]
        total = sum(powers)
        return hidden, [power / total for power in powers]

    def learn(self, examples: list[tuple[int, Picture]]) -> float:
        """Train one epoch; return its mean loss."""
        order = list(range(len(examples)))
        self.chance.shuffle(order)
        loss = 0.0
        for at in order:
            digit, picture = examples[at]
            hidden, likely = self.answer(picture)
            loss -= math.log(likely[digit])
            error = [share - (number == digit) for number, share in enumerate(likely)]
            slopes = [
                RATE * (1 - unit * unit) * sum(error[number] * self.output[number][at] for number in range(10))
                for at, unit in enumerate(hidden)
            ]
            for number, share in enumerate(error):
                step = RATE * share
                self.output[number] = [
                    weight - step * unit for weight, unit in zip(self.output[number], hidden, strict=True)
                ]
            for at, slope in enumerate(slopes):
                self.hidden[at] = [
                    weight - slope * pixel for weight, pixel in zip(self.hidden[at], picture, strict=True)
                ]
        self.epoch += 1
        return loss / len(examples)

    def accuracy(self, examples: list[tuple[int, Picture]]) -> float:
        """The share of pictures that the network recognizes correctly."""
        right = 0
        for digit, picture in examples:
            likely = self.answer(picture)[1]
            right += likely.index(max(likely)) == digit
        return right / len(examples)

    def save(self, path: Path) -> None:
        """Write the file atomically: after a kill, it has either the old or the new content."""
        version, numbers, gauss = self.chance.getstate()
        state = {"epoch": self.epoch, "hidden": self.hidden, "output": self.output}
        scratch = path.with_suffix(".tmp")
        with scratch.open("w") as file:
            json.dump(state | {"chance": [version, numbers, gauss]}, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)

    @classmethod
    def load(cls, path: Path) -> Network:
        state = json.loads(path.read_text())
        network = cls(0)
        network.epoch, network.hidden, network.output = state["epoch"], state["hidden"], state["output"]
        version, numbers, gauss = state["chance"]
        network.chance.setstate((version, tuple(numbers), gauss))
        return network


def draw_exam(folder: Path, count: int) -> None:
    """Draw pictures that are not part of the training data."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random("exam")
    for number in range(count):
        write_picture(folder / f"{number:02d}-{number % 10}.pgm", draw(number % 10, chance))


if __name__ == "__main__":
    draw_exam(Path(sys.argv[1]), int(sys.argv[2]))
