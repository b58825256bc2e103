"""A page that takes videos, and shows the boxes that workers find in them while they find them.

A video is cut into frames on a volume; each frame is an item of an open map. The workers of the map answer with
boxes (`detect.py`). What is kept is on the volume and in the map: this program may be killed at any moment and
started again. No frame is added twice, for each batch has an id; none counts twice, for a result has one item.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import threading
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import moorage

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("VIDEO_FOLDER", "/video"))
MAP = os.environ.get("VIDEO_MAP", "detect")
UPLOAD_BYTES = 2 << 30  # of one video
BATCH = 50  # frames that are added to the map at once
STILL_FRAMES = 25  # looked at to learn what does not move
AGAIN_SECONDS = 2.0  # until a map or server that is away is asked again
STATUS_SECONDS = 1.0
ALIVE_SECONDS = 15.0  # a silent connection is kept open by a comment
ID = re.compile(r"[0-9a-f]{12}")

log = logging.getLogger("video")


# --- videos: files on the volume, and what is known of them


@dataclass
class Video:
    """One video. `frames` grows while it is cut; `cut` says that it is the last number."""

    id: str
    name: str
    width: int = 0
    height: int = 0
    fps: float = 0.0
    frames: int = 0
    cut: bool = False
    problem: str = ""
    results: list[dict[str, Any]] = field(default_factory=list)  # in the order in which they came
    known: set[int] = field(default_factory=set)  # frames that have a result

    def add(self, result: dict[str, Any]) -> bool:
        """Take a result, once; False: that frame has one."""
        if result["frame"] in self.known:
            return False
        self.known.add(result["frame"])
        self.results.append(result)
        return True

    def about(self) -> dict[str, Any]:
        names = ("id", "name", "width", "height", "fps", "frames", "cut", "problem")
        return {name: getattr(self, name) for name in names} | {"done": len(self.known)}


class Videos:
    """All videos of the volume. Changed on the event loop only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.by_id: dict[str, Video] = {}
        self.status: dict[str, Any] = {"map": MAP, "problem": f"waiting for the map {MAP}"}
        self.changed = asyncio.Event()  # at the next change

    def read(self) -> list[Video]:
        """Read what an earlier process left; those videos that are still to be cut."""
        for folder in sorted(self.folder.iterdir(), key=lambda folder: folder.stat().st_mtime):
            if ID.fullmatch(folder.name) and (folder / "name").exists():
                video = Video(folder.name, (folder / "name").read_text())
                if (folder / "info.json").exists():
                    info = json.loads((folder / "info.json").read_text())
                    for key, value in info.items():
                        setattr(video, key, value)
                    video.cut = True
                self.by_id[video.id] = video
        return [video for video in self.by_id.values() if not video.cut]

    def tell(self) -> None:
        """Wake whoever waits for news."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def take(self, results: Iterable[dict[str, Any]]) -> None:
        for result in results:
            video = self.by_id.get(result["video"])
            if video is not None:
                video.add(result)
        self.tell()


# --- cutting a video into frames, and the frames into the map


def cut(video: Video, folder: Path, add: Any, tell: Any) -> None:
    """Write the frames as JPEG and add them to the map. Safe to repeat from the start. Raises ValueError."""
    file = str(folder / "original")
    capture = cv2.VideoCapture(file)
    if not capture.isOpened():
        raise ValueError("this is no video that OpenCV can read")
    video.width = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH))
    video.height = int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
    video.fps = round(capture.get(cv2.CAP_PROP_FPS) or 25.0, 3)
    still = background(file, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
    if still is not None:
        cv2.imwrite(str(folder / "background.png"), still)
    written = 0
    while True:
        good, image = capture.read()
        if good:
            cv2.imwrite(str(folder / f"{written:06}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 90])
            written += 1
        if written > video.frames and (not good or written % BATCH == 0):
            items = [{"video": video.id, "frame": number} for number in range(video.frames, written)]
            add(items, request=f"{video.id}-{video.frames}")
            video.frames = written
            tell()
        if not good:
            break
    capture.release()
    if not written:
        raise ValueError("this video has no frames")
    info = {name: getattr(video, name) for name in ("width", "height", "fps", "frames")}
    (folder / "info.part").write_text(json.dumps(info))
    (folder / "info.part").rename(folder / "info.json")
    video.cut = True
    tell()


def background(file: str, count: int) -> np.ndarray | None:
    """The median of frames from all over the video: what moves is in few of them. None: too few frames."""
    if count < 3:
        return None
    capture = cv2.VideoCapture(file)
    frames = []
    for number in np.linspace(0, count - 1, min(count, STILL_FRAMES)).astype(int):
        capture.set(cv2.CAP_PROP_POS_FRAMES, int(number))
        good, image = capture.read()
        if good:
            frames.append(image)
    capture.release()
    return np.median(np.stack(frames), axis=0).astype(np.uint8) if len(frames) >= 3 else None


# --- the map: results in, frames out


class Work:
    """The threads that speak with Moorage."""

    def __init__(self, videos: Videos) -> None:
        self.videos = videos
        self.loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._cutting = ThreadPoolExecutor(1, thread_name_prefix="cut")
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._follow, self._watch)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._cutting.shutdown(wait=False, cancel_futures=True)

    def cut(self, video: Video) -> None:
        self._cutting.submit(self._cut, video)

    def _tell(self) -> None:
        self.loop.call_soon_threadsafe(self.videos.tell)

    def _cut(self, video: Video) -> None:
        def add(items: list[dict[str, Any]], request: str) -> None:
            while not self._stop.is_set():
                try:
                    with attach() as frames:
                        frames.add(items, request=request)
                    return
                except moorage.errors.MoorageError as error:
                    log.warning("cannot add frames, and try again: %s", error)
                    self._stop.wait(AGAIN_SECONDS)
            raise InterruptedError("the application stops")

        try:
            cut(video, self.videos.folder / video.id, add, self._tell)
        except InterruptedError:
            pass
        except (OSError, ValueError, cv2.error) as error:
            log.warning("cannot cut %s: %s", video.name, error)
            video.problem = str(error)
            self._tell()

    def _follow(self) -> None:
        """Take each result as it comes. After a broken connection all are read again, and counted once."""
        while not self._stop.is_set():
            try:
                with attach() as frames:
                    for _, result in frames.pairs(ordered=False, on_error="return"):
                        self.loop.call_soon_threadsafe(self.videos.take, [_result_of(result)])
                        if self._stop.is_set():
                            return
                log.warning("the map %s is closed", MAP)
            except moorage.errors.MoorageError as error:
                log.warning("cannot read results, and try again: %s", error)
            self._stop.wait(AGAIN_SECONDS)

    def _watch(self) -> None:
        while not self._stop.wait(STATUS_SECONDS):
            try:
                with attach() as frames:
                    while not self._stop.wait(STATUS_SECONDS):
                        now = frames.status()
                        rate = now.items_per_second
                        self._show(workers=now.workers, rate=rate, waiting=now.total - now.done - now.failed)
            except moorage.errors.MoorageError as error:
                self._show(problem=str(error))

    def _show(self, *, problem: str = "", **figures: Any) -> None:
        status = {"map": MAP, "problem": problem, **figures}
        if status != self.videos.status:
            self.videos.status = status
            self._tell()


def attach() -> moorage.Map[Any]:
    """The map, by $MOORAGE_SERVER and $MOORAGE_TOKEN, or as you are logged in."""
    return moorage.Map.attach(MAP, namespace=os.environ.get("VIDEO_NAMESPACE"), progress=False)


def _result_of(result: Any) -> dict[str, Any]:
    """A frame that failed for good has no boxes, and says why."""
    if isinstance(result, moorage.ItemError):
        return {**result.value, "boxes": [], "problem": result.reason}
    return dict(result)


# --- the page


async def page(_: Request) -> Response:
    return HTMLResponse((HERE / "page.html").read_text())


async def upload(request: Request) -> Response:
    """The body is the video. It is on the volume before the answer is sent."""
    videos: Videos = request.app.state.videos
    name = Path(request.query_params.get("name") or "video").name[:200]
    video = Video(secrets.token_hex(6), name)
    folder = videos.folder / video.id
    folder.mkdir()
    size = 0
    try:
        with (folder / "original.part").open("wb") as file:
            async for part in request.stream():
                size += len(part)
                if size > UPLOAD_BYTES:
                    raise HTTPException(413, f"a video may have {UPLOAD_BYTES} bytes")
                await asyncio.to_thread(file.write, part)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    (folder / "original.part").rename(folder / "original")
    (folder / "name").write_text(name)
    videos.by_id[video.id] = video
    videos.tell()
    request.app.state.work.cut(video)
    return JSONResponse(video.about(), status_code=201)


async def frame(request: Request) -> Response:
    file = _video(request).id + f"/{request.path_params['number']:06}.jpg"
    path = request.app.state.videos.folder / file
    if not path.exists():
        raise HTTPException(404, "no such frame")
    return FileResponse(path, headers={"cache-control": "max-age=3600, immutable"})


async def boxes(request: Request) -> Response:
    """All boxes so far, by frame."""
    video = _video(request)
    results = sorted(video.results, key=lambda result: result["frame"])
    return JSONResponse({**video.about(), "results": results})


async def events(request: Request) -> Response:
    """What changes, as server-sent events: `videos`, `status`, and of one video its `results`."""
    videos: Videos = request.app.state.videos
    wanted = request.query_params.get("video", "")

    async def lines() -> AsyncIterator[str]:
        sent, before = 0, {}
        while True:
            changed = videos.changed  # also by what comes while this is sent
            video = videos.by_id.get(wanted)
            fresh = video.results[sent:] if video is not None else []
            sent += len(fresh)
            now = {"videos": [each.about() for each in videos.by_id.values()], "status": videos.status}
            told = {name: data for name, data in now.items() if before.get(name) != data}
            before = now
            if fresh:
                told["results"] = fresh
            yield (
                "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in told.items()) or ": \n\n"
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), ALIVE_SECONDS)

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"cache-control": "no-store"})


def _video(request: Request) -> Video:
    video = request.app.state.videos.by_id.get(request.path_params["video"])
    if video is None:
        raise HTTPException(404, "no such video")
    return video


@contextlib.asynccontextmanager
async def life(app: Starlette) -> AsyncIterator[None]:
    app.state.videos = Videos(FOLDER)
    uncut = app.state.videos.read()
    app.state.work = Work(app.state.videos)
    for video in uncut:
        app.state.work.cut(video)
    yield
    app.state.work.stop()


app = Starlette(
    lifespan=life,
    routes=[
        Route("/", page),
        Route("/videos", upload, methods=["POST"]),
        Route("/videos/{video}/boxes", boxes),
        Route("/videos/{video}/frames/{number:int}.jpg", frame),
        Route("/events", events),
    ],
)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # on one machine all pods share its network: who listens on 0.0.0.0 takes the port from every other
    host = os.environ.get("HOST") or os.environ.get("POD_IP") or "0.0.0.0"
    port = int(os.environ.get("PORT", "8000"))
    uvicorn.run(app, host=host, port=port, timeout_graceful_shutdown=2)
