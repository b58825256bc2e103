from __future__ import annotations

import hashlib
import re
from importlib import resources

import pytest

VENDOR = resources.files("moorage.server.pages").joinpath("static", "vendor")


def test_vendored_files_are_what_their_checksums_say():
    listed = dict(reversed(line.split()) for line in VENDOR.joinpath("SHA256SUMS.txt").read_text().splitlines())
    files = {file.name for file in VENDOR.iterdir() if file.name.endswith((".js", ".css"))}
    assert set(listed) == files
    for name, digest in listed.items():
        assert hashlib.sha256(VENDOR.joinpath(name).read_bytes()).hexdigest() == digest, name
        assert name in VENDOR.joinpath("README.txt").read_text()


@pytest.mark.anyio
async def test_every_file_the_page_names_is_there_and_nothing_comes_from_elsewhere(site):
    async with site.running():
        page = (await site.ask("/")).text
        named = re.findall(r'(?:src|href)="([^"#]+)', page)
        pages = {
            "/",
            "/workspaces",
            "/jobs",
            "/maps",
            "/volumes",
            "/datasets",
            "/secrets",
            "/workflows",
            "/crons",
            "/login",
            "/glance/history",
            "/glance/work",
            "/glance/cost",
        }
        assert {one for one in named if not one.startswith("/static/")} == pages
        for path in named:
            if not path.startswith("/static/"):
                continue
            answer = await site.ask(path, token=False)
            assert answer.status == 200, path
            again = await site.ask(path, token=False, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status, again.body) == (304, b"")


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path",
    [
        "../auth.py",
        "..%2fauth.py",
        "",
        "vendor",
        "vendor/",
        "x.css",
        "//etc/passwd.css",
        "./moorage.css",
        "a/../moorage.css",
    ],
)
async def test_nothing_outside_the_folder_is_served(site, path):
    odd = "//" in path or ".." in path or path.startswith(".") or "%2f" in path
    assert (await site.ask(f"/static/{path}", token=False)).status == (400 if odd else 404)
