"""A web page with the pictures of a folder: the application in the demo's workspace."""

from __future__ import annotations

import html
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(os.environ.get("GALLERY", "/pictures"))
STYLE = (
    "body{font:16px sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "svg{width:4rem;margin:.2rem}"
)


def drawing(path: Path) -> str:
    words = path.read_text().split()
    side, pixels = int(words[1]), [int(word) for word in words[4:]]
    squares = "".join(
        f'<rect x="{at % side}" y="{at // side}" width="1" height="1" fill="rgb({grey},{grey},{grey})"/>'
        for at, grey in enumerate(pixels)
    )
    name = html.escape(path.stem)
    return f'<svg viewBox="0 0 {side} {side}" role="img" aria-label="{name}"><title>{name}</title>{squares}</svg>'


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        pictures = sorted(FOLDER.glob("*.pgm"))
        page = (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>Gallery</title><style>{STYLE}</style>"
            f"<h1>{len(pictures)} pictures</h1><p>The map drew them on the volume <code>pictures</code>;"
            " this workspace mounts the volume. A workspace is any application with a page:"
            " JupyterLab, code-server, or these 40 lines of Python.</p>"
            + "".join(drawing(path) for path in pictures[:200])
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)


if __name__ == "__main__":
    address = (os.environ.get("POD_IP", "127.0.0.1"), int(os.environ.get("MOORAGE_PORT", "8000")))
    ThreadingHTTPServer(address, Page).serve_forever()
