"""Files of a volume on the page: opened on request, listed, shown, downloaded, uploaded and deleted."""

from __future__ import annotations

import io
import json
from urllib.parse import quote, urlencode

import pytest

from moorage.filler import browse
from moorage.filler.__main__ import main
from moorage.filler.tree import Tree
from moorage.model.names import OWNER_ANNOTATION
from moorage_kube.errors import Forbidden
from moorage_kube.resources import NAMESPACES, NODES, PODS, PVCS
from moorage_testing.multipart import CONTENT_TYPE, a_form

pytestmark = pytest.mark.anyio
ODD = "odd\n<name>"
FILES = "/volumes/team/data/files"


class Exec:
    """A command of the helper pod, run here on a folder. It begins when its output is read."""

    def __init__(self, folder, words, capsysbinary):
        self.words = [word.replace("--root=/volume", f"--root={folder}") for word in words[3:]]
        self.root, self.sent, self.capture = folder, b"", capsysbinary

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def write(self, data):
        self.sent += data

    async def __aiter__(self):
        yield 1, (await self.output())[1]

    async def output(self):
        self.capture.readouterr()
        if self.words[0] == "write":
            path = self.words[2].removeprefix("--path=")
            result = browse.write_file(Tree(self.root), path, io.BytesIO(self.sent))
            return 0, json.dumps(result).encode(), b""
        code = main(self.words)
        return code, self.capture.readouterr().out, b""


class Browser:
    """ada, whose requests act with her Kubernetes token."""

    def __init__(self, site, folder, capsysbinary):
        self.site, self.api, self.folder = site, site.api, folder
        site.api.with_token = lambda token, *_: site.api
        site.api.readers |= {("ada", "team"), ("ada", None)}
        site.api.put(NAMESPACES, {"metadata": {"name": "team"}})
        asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        site.api.put(PVCS, {"metadata": {"name": "data", "namespace": "team"}, "spec": asked})
        node = {
            "metadata": {"name": "n1"},
            "status": {"nodeInfo": {"containerRuntimeVersion": "process://1"}},
        }
        site.api.put(NODES, node)

        async def run(pod, namespace, words, *, stdin=None):
            assert (namespace, bool(stdin)) == ("team", words[3] == "write")
            return Exec(folder, words, capsysbinary)

        site.api.exec = run

    async def get(self, path):
        return await self.site.ask(path, headers={"authorization": "Bearer kube-token"}, token=False)

    async def post(self, path, body=b"", kind="application/x-www-form-urlencoded"):
        headers = {"authorization": "Bearer kube-token", "content-type": kind}
        return await self.site.ask(path, method="POST", headers=headers, body=body, token=False)

    async def pods(self):
        return (await self.api.list(PODS, "team")).items

    async def open(self, phase="Running"):
        answer = await self.post(f"{FILES}/open", urlencode({"path": ""}).encode())
        assert answer.status == 303
        [pod] = await self.pods()
        self.api.put(PODS, pod | {"status": {"phase": phase}})


@pytest.fixture
async def ada(site, tmp_path, capsysbinary):
    folder = tmp_path / "volume"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "train.py").write_text("print('<b>')\n")
    async with site.running():
        yield Browser(site, folder, capsysbinary)


async def test_a_page_starts_no_pod_until_its_user_asks_and_then_a_single_one(ada):
    answer = await ada.get(FILES)
    assert (answer.status, "Open the files" in answer.page.buttons(), await ada.pods()) == (200, True, [])
    await ada.open(phase="Pending")
    await ada.post(f"{FILES}/open")
    [pod] = await ada.pods()
    [volume] = pod["spec"]["volumes"]
    assert (volume["persistentVolumeClaim"], pod["metadata"]["annotations"][OWNER_ANNOTATION]) == (
        {"claimName": "data"}, "ada",
    )  # fmt: skip
    assert (await ada.get(FILES)).page.texts('[role="status"]')[-1].startswith("A helper pod is starting.")
    await ada.post(f"{FILES}/close")
    assert await ada.pods() == []
    assert (await ada.get(f"{FILES}/download?path=code/train.py")).status == 409


async def test_a_folder_a_text_and_a_download(ada):
    await ada.open()
    (ada.folder / ODD).write_bytes(b"\0\1")
    page = (await ada.get(FILES)).page
    assert page.links("tbody")[:2] == [
        ("code/", f"{FILES}?path=code"), ("Delete code", f"{FILES}/delete?path=code"),
    ]  # fmt: skip
    assert "'odd\\n<name>'" in page.element("tbody").text
    page = (await ada.get(f"{FILES}?path=code")).page
    assert page.links("tbody")[0] == ("train.py", f"{FILES}/text?path=code/train.py")
    assert (await ada.get(f"{FILES}/text?path=code/train.py")).page.element("#text").text == "print('<b>')\n"
    binary = await ada.get(f"{FILES}/text?path={quote(ODD)}")
    assert (binary.status, binary.page.texts(".empty")) == (200, ["This file is not text. Download it to use it."])
    download = await ada.get(f"{FILES}/download?path={quote(ODD)}")
    assert (download.body, download.headers["content-type"]) == (b"\0\1", "application/octet-stream")
    assert download.headers["content-disposition"] == "attachment; filename*=UTF-8''odd%0A%3Cname%3E"


async def test_an_upload_writes_files_and_a_deletion_removes_them(ada):
    await ada.open()
    form = a_form(("files", "データ.csv", b"1,2\n"), ("files", "C:\\code\\a.bin", bytes(9000)))
    answer = await ada.post(f"{FILES}/upload?path=code", form, CONTENT_TYPE)
    assert (answer.status, answer.headers["location"]) == (
        303, f"{FILES}?path=code&done=uploaded&what=team%2Fdata",
    )  # fmt: skip
    assert {file.name: file.stat().st_size for file in (ada.folder / "code").iterdir()} == {
        "train.py": 13, "データ.csv": 4, "a.bin": 9000,
    }  # fmt: skip
    answer = await ada.post(f"{FILES}/delete?path=code")
    assert (answer.status, list(ada.folder.iterdir())) == (303, [])


@pytest.mark.parametrize("name", ["..", "", "nul\0", "x" * 300])
async def test_a_file_whose_name_leads_elsewhere_is_refused(ada, name):
    await ada.open()
    answer = await ada.post(f"{FILES}/upload", a_form(("files", name, b"x")), CONTENT_TYPE)
    assert (answer.status, [path.name for path in ada.folder.iterdir()]) == (422, ["code"])


@pytest.mark.parametrize(
    ("path", "status"), [("..", 422), ("code/../../x", 422), ("none", 404), ("code/train.py", 409)]
)
async def test_a_folder_that_cannot_be_shown_says_why(ada, path, status):
    await ada.open()
    answer = await ada.get(f"{FILES}?path={quote(path)}")
    assert (answer.status, bool(answer.page.note)) == (status, True)


async def test_the_rights_of_the_user_decide(ada):
    async def refused(*_, **__):
        raise Forbidden('pods "x" is forbidden: User "ada" cannot create resource "pods/exec"')

    await ada.open()
    ada.api.exec = refused
    for path in (FILES, f"{FILES}/text?path=code/train.py", f"{FILES}/download?path=code/train.py"):
        assert (await ada.get(path)).status == 403


async def test_a_run_of_a_folder_is_refused_if_the_folder_lacks_its_file(ada):
    await ada.open()
    page = (await ada.get(f"{FILES}?path=code")).page
    [link] = [to for words, to in page.links("#files") if words == "Run the code of this folder"]
    given = (await ada.get(link)).page.form("/jobs/new") | {"do": "check", "memory": "1Gi"}
    assert given["workingDir"] == "data:code"

    async def check(**typed):
        return await ada.post("/jobs/new", urlencode(given | typed).encode())

    fits = await check(command="python train.py")
    assert (fits.status, fits.page.texts(".note")) == (200, [])
    refused = await check(command="python other.py")
    assert (refused.status, refused.page.problem_at("workingDir")) == (
        422, "Folder code of volume data has no file other.py;"
        " upload it there, on the page of the volume, or change the command.",
    )  # fmt: skip
    refused = await check(command="python train.py", workingDir="data:")
    assert refused.page.problem_at("workingDir").startswith("Volume data has no file train.py;")
    await ada.post(f"{FILES}/close")
    unknown = await check(command="python other.py")
    assert (unknown.status, unknown.page.texts(".note")) == (
        200, ["Volume data must have the file other.py: its files are not open on this page."],
    )  # fmt: skip
