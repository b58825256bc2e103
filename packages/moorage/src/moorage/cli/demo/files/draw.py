"""Draw one picture of a digit into a folder: `python3 draw.py NUMBER FOLDER`. It is the command of a demo map.

For some numbers the first attempt fails, like a download; the map then retries it.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from digits import draw, write_picture

FAILS_ONCE = 50  # one number of so many

number, folder = int(sys.argv[1]), Path(sys.argv[2])
tried = folder / f".tried-{number}"
if number % FAILS_ONCE == 7 and not tried.exists():
    tried.touch()
    sys.exit(f"picture {number} did not arrive: connection reset")
digit = number % 10
picture = draw(digit, random.Random(number))
write_picture(folder / f"{number:03d}-{digit}.pgm", picture)
result = {"digit": digit, "ink": round(sum(picture), 2)}
if "MOORAGE_RESULT" in os.environ:
    Path(os.environ["MOORAGE_RESULT"]).write_text(json.dumps(result))
print(f"picture {number} shows a {digit}")
