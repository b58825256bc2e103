from __future__ import annotations

import base64
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from moorage_local.nodeagent.environment import Ref
from moorage_local.nodeagent.volumes import (
    File,
    TokenRequest,
    VolumeError,
    host_path,
    make_ready,
    references,
    render,
    token_requests,
    write_files,
)

POD: dict[str, Any] = {
    "metadata": {"name": "p", "labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]},
}
LOOKUP: Any = {
    Ref("ConfigMap", "cfg"): {"data": {"a": "1", "b": "2"}},
    Ref("Secret", "sec"): {"data": {"k": base64.b64encode(b"v").decode()}},
}


ALL_ANNOTATIONS = {"fieldRef": {"fieldPath": "metadata.annotations"}}


@pytest.mark.parametrize(
    "sources",
    [
        pytest.param(
            [{"configMap": {"name": "large", "items": [{"key": "k", "path": str(at)}]}} for at in range(300)],
            id="a key under many paths",
        ),
        pytest.param(
            [{"downwardAPI": {"items": [{"path": str(at)} | ALL_ANNOTATIONS for at in range(300)]}}],
            id="annotations under many paths",
        ),
    ],
)
def test_a_few_lines_do_not_become_files_without_end(sources: list[Any]) -> None:
    lookup: Any = {Ref("ConfigMap", "large"): {"data": {"k": "x" * 900_000}}}
    pod = POD | {"metadata": {"name": "p", "annotations": {"note": "n" * 250_000}}}
    with pytest.raises(VolumeError, match="exceed 64 MiB in all"):
        render({"name": "v", "projected": {"sources": sources}}, pod, lookup, {}, {})


def rendered(volume: dict[str, Any], tokens: Any = None) -> Any:
    return render({"name": "v"} | volume, POD, LOOKUP, tokens or {}, {})


@pytest.mark.parametrize(
    ("volume", "want"),
    [
        ({"configMap": {"name": "cfg"}}, {"a": File(b"1", 0o644), "b": File(b"2", 0o644)}),
        (
            {"configMap": {"name": "cfg", "items": [{"key": "a", "path": "x/y", "mode": 0o400}]}},
            {"x/y": File(b"1", 0o400)},
        ),
        ({"secret": {"secretName": "sec", "defaultMode": 0o440}}, {"k": File(b"v", 0o400)}),
        ({"secret": {"secretName": "no", "optional": True}}, {}),
        (
            {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"l": File(b'a="b"', 0o644)},
        ),
        (
            {
                "downwardAPI": {
                    "items": [
                        {"path": "n", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}},
                    ]
                }
            },
            {"n": File(b"2", 0o644)},
        ),
        (
            {
                "projected": {
                    "defaultMode": 0o600,
                    "sources": [{"configMap": {"name": "cfg"}}, {"secret": {"name": "sec"}}],
                }
            },
            {"a": File(b"1", 0o600), "b": File(b"2", 0o600), "k": File(b"v", 0o600)},
        ),
        ({"emptyDir": {}}, None),
        ({"hostPath": {"path": "/x"}}, None),
    ],
)
def test_files_of_a_volume(volume: dict[str, Any], want: Any) -> None:
    assert rendered(volume) == want


def test_tokens_are_asked_for_and_written_for_the_owner_only() -> None:
    volume = {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "x"}}]}}
    request = TokenRequest("v", "t", "x", 3600)
    assert token_requests({"volumes": [volume]}) == [request]
    assert rendered(volume, {request: "abc"}) == {"t": File(b"abc", 0o600)}


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "no"}}, 'MountVolume.SetUp failed for volume "v" : configmap "no" not found'),
        ({"secret": {"secretName": "no"}}, 'MountVolume.SetUp failed for volume "v" : secret "no" not found'),
        (
            {"configMap": {"name": "cfg", "items": [{"key": "z", "path": "z"}]}},
            'MountVolume.SetUp failed for volume "v" : references non-existent config key: z',
        ),
        (
            {"configMap": {"name": "cfg", "items": [{"key": "a", "path": "../x"}]}},
            "MountVolume.SetUp failed for volume \"v\" : invalid path '../x': must be relative and without '..'",
        ),
    ],
)
def test_what_is_missing_is_named(volume: dict[str, Any], message: str) -> None:
    with pytest.raises(VolumeError) as caught:
        rendered(volume)
    assert caught.value.message == message


CLAIM = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}


def claimed(claim: Any, volume: Any) -> Any:
    return host_path(CLAIM, {Ref("PersistentVolumeClaim", "data"): claim}, {"pv1": volume})


def test_claim_leads_to_the_folder_of_its_volume() -> None:
    claim = {"spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}}
    assert claimed(claim, {"spec": {"hostPath": {"path": "/x"}}}) == ("/x", False)
    assert claimed(claim, {"spec": {"local": {"path": "/y"}}}) == ("/y", False)
    read_only = claim | {"spec": {"volumeName": "pv1", "accessModes": ["ReadOnlyMany"]}}
    assert claimed(read_only, {"spec": {"hostPath": {"path": "/x"}}}) == ("/x", True)


@pytest.mark.parametrize(
    ("claim", "volume", "words"),
    [
        (None, None, 'persistentvolumeclaim "data" not found'),
        ({"spec": {}, "status": {"phase": "Pending"}}, None, 'claim "data" is not bound'),
        ({"spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}}, None, 'persistentvolume "pv1" not found'),
        (
            {"spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}},
            {"spec": {"nfs": {}}},
            'this node cannot mount persistentvolume "pv1": use a volume of the type hostPath or local',
        ),
    ],
)
def test_claim_that_leads_nowhere_says_why(claim: Any, volume: Any, words: str) -> None:
    with pytest.raises(VolumeError) as caught:
        claimed(claim, volume)
    assert words in caught.value.message


def test_volume_kinds_of_other_machines_are_refused() -> None:
    with pytest.raises(VolumeError) as caught:
        host_path({"name": "v", "nfs": {"server": "x"}}, {}, {})
    assert "this node cannot mount nfs volumes" in caught.value.message


def test_host_path_types(tmp_path: Path) -> None:
    def ready(kind: str, path: Path) -> None:
        make_ready({"name": "v", "hostPath": {"path": str(path), "type": kind}}, str(path))

    ready("DirectoryOrCreate", tmp_path / "made")
    ready("", tmp_path / "untyped")
    ready("FileOrCreate", tmp_path / "file")
    ready("Directory", tmp_path / "made")
    ready("File", tmp_path / "file")
    assert (tmp_path / "made").is_dir()
    assert (tmp_path / "untyped").is_dir()
    for kind, path, words in (
        ("Directory", tmp_path / "none", "doesn't exist"),
        ("Directory", tmp_path / "file", "is not a directory"),
        ("File", tmp_path / "made", "is not a file"),
        ("Socket", tmp_path / "file", "is not a socket file"),
        ("Nonsense", tmp_path / "file", "Nonsense is an invalid volume type"),
    ):
        with pytest.raises(VolumeError) as caught:
            ready(kind, path)
        assert words in caught.value.message


def test_files_are_replaced_added_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    assert write_files(folder, {"a": File(b"1", 0o644), "x/y": File(b"2", 0o400)})
    assert not write_files(folder, {"a": File(b"1", 0o644), "x/y": File(b"2", 0o400)})
    assert stat.S_IMODE(os.stat(folder / "x/y").st_mode) == 0o400
    assert write_files(folder, {"a": File(b"new", 0o644)})
    assert {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")} == {"a": b"new"}


def test_objects_referred_to_are_listed() -> None:
    spec = {
        "volumes": [
            {"name": "a", "configMap": {"name": "c"}},
            {"name": "b", "projected": {"sources": [{"secret": {"name": "s"}}, {"downwardAPI": {}}]}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "p"}},
            {"name": "e", "emptyDir": {}},
        ]
    }
    assert references(spec) == {Ref("ConfigMap", "c"), Ref("Secret", "s"), Ref("PersistentVolumeClaim", "p")}
