"""Find objects in one frame. `moor map create … --function detect:find` sends this file to the workers.

A worker imports it once and calls `find` for each frame. It imports nothing of the application beside it.

$DETECTOR chooses: `opencv` (CPU), `torch` (GPU, or CPU if there is none), or `auto` (the default): torch where it
finds a GPU and $WEIGHTS names a file, else OpenCV.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

FOLDER = Path(os.environ.get("VIDEO_FOLDER", "/video"))  # the volume that the application and the workers share
SMALLEST = 0.0005  # of a frame: what moves and is smaller is noise
DIFFERENT = 25  # of 255: how far a pixel must be from the background
PEOPLE_WIDTH = 640  # pixels; larger frames are made smaller to look for people
SURE = 0.6  # HOG's score from which it is a person
SCORE = 0.5  # of a network, from which a box is shown
COCO = {
    1: "person",
    2: "bicycle",
    3: "car",
    4: "motorcycle",
    6: "bus",
    7: "train",
    8: "truck",
    17: "cat",
    18: "dog",
}

Box = dict[str, Any]  # x, y, width, height in pixels of the frame; label; score from 0 to 1
Detector = Callable[[np.ndarray, np.ndarray | None], list[Box]]


def find(item: dict[str, Any]) -> dict[str, Any]:
    """The boxes of the frame that `item` names. Raises OSError for a frame that is not on the volume."""
    began = time.monotonic()
    name, detector = chosen()
    folder = FOLDER / item["video"]
    image = cv2.imread(str(folder / f"{item['frame']:06}.jpg"))
    if image is None:
        raise OSError(f"frame {item['frame']} of video {item['video']} cannot be read from {folder}")
    boxes = detector(image, background(str(folder / "background.png")))
    return {
        "video": item["video"],
        "frame": item["frame"],
        "boxes": boxes,
        "detector": name,
        "worker": os.environ.get("MOORAGE_POD") or socket.gethostname(),
        "seconds": round(time.monotonic() - began, 4),
    }


@functools.lru_cache(maxsize=8)
def background(path: str) -> np.ndarray | None:
    """What the camera sees when nothing moves; None: nobody knows."""
    return cv2.imread(path)


# --- which detector


@functools.cache
def chosen() -> tuple[str, Detector]:
    """The detector of this worker and its name. Raises ValueError for a $DETECTOR that does not exist."""
    wanted = os.environ.get("DETECTOR", "auto")
    if wanted not in ("auto", "opencv", "torch"):
        raise ValueError(f"invalid DETECTOR {wanted!r}: use auto, opencv or torch")
    weights = os.environ.get("WEIGHTS", "")
    if wanted == "torch" or (wanted == "auto" and weights and _has_cuda()):
        return _torch_detector(weights)
    cv2.setNumThreads(1)  # a worker has the CPU it asked for, not all of the node's
    return "opencv", opencv_boxes


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


# --- on a CPU: nothing to download


def opencv_boxes(image: np.ndarray, still: np.ndarray | None) -> list[Box]:
    """What differs from the background, and people standing or walking."""
    people = _people(image)
    moving = [] if still is None or still.shape != image.shape else _moving(image, still)
    return people + [box for box in moving if all(overlap(box, person) < 0.3 for person in people)]


def _moving(image: np.ndarray, still: np.ndarray) -> list[Box]:
    difference = cv2.GaussianBlur(cv2.absdiff(image, still).max(axis=2), (5, 5), 0)
    _, mask = cv2.threshold(difference, DIFFERENT, 255, cv2.THRESH_BINARY)
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (5, 5))
    mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, kernel, iterations=2)
    contours, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    least = SMALLEST * mask.size
    boxes = []
    for contour in contours:
        x, y, width, height = cv2.boundingRect(contour)
        if width * height >= least:
            filled = float(cv2.contourArea(contour)) / (width * height)
            boxes.append(_box("moving", min(1.0, filled), x, y, width, height))
    return sorted(boxes, key=lambda box: -box["width"] * box["height"])


@functools.cache
def _hog() -> cv2.HOGDescriptor:
    """OpenCV's detector of people; its coefficients are in the package."""
    hog = cv2.HOGDescriptor()
    hog.setSVMDetector(cv2.HOGDescriptor_getDefaultPeopleDetector())
    return hog


def _people(image: np.ndarray) -> list[Box]:
    scale = min(1.0, PEOPLE_WIDTH / image.shape[1])
    small = image if scale == 1.0 else cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    if small.shape[0] < 128 or small.shape[1] < 64:
        return []  # the detector looks through a window of 64 × 128
    places, weights = _hog().detectMultiScale(small, winStride=(8, 8), padding=(8, 8), scale=1.05)
    boxes: list[Box] = []
    for place, weight in sorted(zip(places, weights, strict=True), key=lambda pair: -float(pair[1])):
        if float(weight) < SURE:
            break
        # its window has a margin around the person: an eighth at the sides, a sixteenth above and below
        x, y, w, h = (float(number) / scale for number in place)
        box = _box("person", min(1.0, float(weight) / 4), x + w / 8, y + h / 16, w * 3 / 4, h * 7 / 8)
        if all(overlap(box, other) < 0.4 for other in boxes):
            boxes.append(box)
    return boxes


# --- on a GPU


def _torch_detector(weights: str) -> tuple[str, Detector]:
    """Faster R-CNN of torchvision, with the weights in the file `weights`. Raises ImportError, ValueError."""
    import torch
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn as network

    if not weights:
        raise ValueError("the torch detector needs WEIGHTS: the path of a state dict of its network, on a volume")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = network(weights=None, weights_backbone=None)
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    model.to(device).eval()

    @torch.inference_mode()
    def boxes_of(image: np.ndarray, _still: np.ndarray | None) -> list[Box]:
        rgb = np.ascontiguousarray(image[:, :, ::-1].transpose(2, 0, 1))
        found = model([torch.from_numpy(rgb).to(device).float() / 255])[0]
        rows = zip(found["boxes"].tolist(), found["labels"].tolist(), found["scores"].tolist(), strict=True)
        return [
            _box(COCO.get(label, f"class {label}"), score, x0, y0, x1 - x0, y1 - y0)
            for (x0, y0, x1, y1), label, score in rows
            if score >= SCORE
        ]

    return f"torch on {device.type}", boxes_of


# --- boxes


def _box(label: str, score: float, x: float, y: float, width: float, height: float) -> Box:
    place = {"x": round(x), "y": round(y), "width": round(width), "height": round(height)}
    return {"label": label, "score": round(score, 3), **place}


def overlap(box: Box, other: Box) -> float:
    """Area of both over area of either, 0 to 1."""
    width = min(box["x"] + box["width"], other["x"] + other["width"]) - max(box["x"], other["x"])
    height = min(box["y"] + box["height"], other["y"] + other["height"]) - max(box["y"], other["y"])
    common = max(0, width) * max(0, height)
    return common / (box["width"] * box["height"] + other["width"] * other["height"] - common or 1)
