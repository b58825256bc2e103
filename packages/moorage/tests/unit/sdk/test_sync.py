"""Clients that nobody closes: the program ends without a warning, whatever it did before."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVER = """
import asyncio, gc, http.server, threading
import moorage

class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "28")
        self.end_headers()
        self.wfile.write(b'{"name":"ada","groups":[]}  ')

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}"

async def ask(client):
    assert (await client.whoami()).name == "ada"
"""

PROGRAMS = {
    "at the end of the program": "client = moorage.Client(url, 't'); client.whoami()",
    "by an exception": "client = moorage.Client(url, 't'); client.whoami(); raise SystemExit(0)",
    "by a name that goes away": "client = moorage.Client(url, 't'); client.whoami(); del client; gc.collect()",
    "in another thread": "thread = threading.Thread(target=lambda: moorage.Client(url, 't').whoami())\n"
    "thread.start(); thread.join(); gc.collect()",
    "in a coroutine": "asyncio.run(ask(moorage.AsyncClient(url, 't'))); gc.collect()",
    "between two event loops": "client = moorage.AsyncClient(url, 't')\n"
    "asyncio.run(ask(client)); asyncio.run(ask(client))",
    "on a loop that stays, as in a notebook": "client = moorage.AsyncClient(url, 't')\n"
    "asyncio.new_event_loop().run_until_complete(ask(client))",
    "never opened": "client = moorage.Client(url, 't')",
    "after it was closed": "client = moorage.Client(url, 't'); client.whoami(); client.close(); client.whoami()",
}


@pytest.mark.processes
@pytest.mark.parametrize("program", [pytest.param(text, id=name) for name, text in PROGRAMS.items()])
def test_a_client_that_is_left_open_leaves_no_warning(program):
    words = [sys.executable, "-W", "error", "-c", SERVER + program]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
