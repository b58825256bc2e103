"""`moor dataset`, `moor volume backup`, and runs that mount datasets, as typed."""

from __future__ import annotations

import json

import pytest

from moorage.model.dataset import DATASETS, reader_claim_name
from moorage.model.volumebackup import BACKUPS
from moorage_kube.errors import Forbidden, ServerError
from moorage_kube.resources import JOBS, PODS, PVCS, SECRETS
from moorage_kube.testing.builders import a_condition, an_object
from moorage_kube.testing.clock import FakeClock
from moorage_testing.builders import a_run_pod, keyed
from moorage_testing.commandline import Moor
from moorage_testing.datasets import make_dataset


def a_dataset(phase="Ready", name="photos", **status):
    status = {"phase": phase, "claim": f"dataset-{name}", "files": 3, "bytes": 30} | status
    return make_dataset(name, "default", url="s3://b/x") | {"status": status}


def put_reader(moor: Moor) -> None:
    moor.api.put(PODS, a_run_pod("p", namespace="default", claims=["dataset-photos"]))


def put_secret(moor: Moor) -> None:
    moor.api.put(SECRETS, an_object(SECRETS, "aws", namespace="default", data={}))


def test_a_dataset_has_the_typed_options(moor):
    put_secret(moor)
    done = moor("dataset", "create", "photos", "--source", "s3://b/x", "--size", "5Gi", "--secret", "aws",
                "--reader", "vision", "--unpack")  # fmt: skip
    assert (done.code, done.out) == (0, "photos\n")
    spec = moor.api.objects["datasets", "default", "photos"]["spec"]
    source = {"url": "s3://b/x", "secret": "aws", "unpack": True}
    assert spec == {"source": source, "size": "5Gi", "readers": ["vision"]}


@pytest.mark.parametrize(
    ("url", "keys"),
    [
        ("s3://b/x", "--from-env AWS_ACCESS_KEY_ID --from-env AWS_SECRET_ACCESS_KEY"),
        ("gs://b/x", "--from-file key.json=key.json"),
        ("https://host/x", "MOORAGE_HTTP_AUTHORIZATION"),
    ],
)
def test_a_secret_that_is_missing_is_named_with_the_command_that_creates_it(moor, url, keys):
    done = moor("dataset", "create", "p", "--source", url, "--secret", "aws")
    assert (done.code, moor.api.named(DATASETS)) == (2, [])
    assert done.err == (
        f"error: Secret 'aws' not found in namespace default: it must hold the credentials for {url}\n"
        f"hint: create it, then try again: moor secret create aws -n default {keys}\n"
    )


@pytest.mark.parametrize(("verb", "code"), [("get", 2), ("create", 0)])
def test_a_missing_secret_is_found_without_the_right_to_read_it(moor, verb, code):
    moor.api.refuse[verb, "secrets"] = Forbidden("secrets is forbidden")
    assert moor("dataset", "create", "p", "--source", "s3://b/x", "--secret", "aws").code == code


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            (),
            "hint: create a Secret: moor secret create photos-keys -n default"
            " --from-env AWS_ACCESS_KEY_ID --from-env AWS_SECRET_ACCESS_KEY\n"
            "then delete the dataset and create it with --secret photos-keys: moor dataset delete photos\n",
        ),
        (("--secret", "aws"), "hint: correct the keys in Secret 'aws', then run: moor dataset refill photos\n"),
    ],
)
def test_a_refusal_by_the_source_comes_with_a_hint_about_the_keys(moor, words, hint):
    put_secret(moor)
    denied = a_condition("Ready", False, reason="SourceDenied", message="s3://b/x: Forbidden")

    def refuse(verb, kind, name):
        if (verb, kind) == ("get", "datasets"):
            moor.api.put(DATASETS, a_dataset("Failed", conditions=[denied]))

    moor.api.on_call = refuse
    done = moor("dataset", "create", "photos", "--source", "s3://b/x", "--wait", *words)
    assert (done.code, done.err.endswith(hint)) == (1, True), done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["create", "Photos", "--source", "s3://b/x"], "name: 'Photos' must be"),
        (["create", "x" * 41, "--source", "s3://b/x"], "must be at most 40 of a-z"),
        (["create", "p", "--source", "/no/such/folder"], "neither a source nor a folder"),
        (["create", "p", "--source", "ftp://x/y"], "neither a source nor a folder"),
        (["create", "p", "--source", "volume:../x"], "source.url: 'volume:../x' must be"),
        (["create", "p", "--source", "s3://key:word@b/x"], "must not contain a password"),
        (["create", "p", "--source", "s3://b/x", "--size", "0"], "size: '0' must be more than zero"),
        (["create", "p", "--source", "s3://b/\x1b[31m"], "control characters"),
        (["share", "p"], "tenant missing"),
    ],
)
def test_wrong_usage_is_one_clear_error_and_nothing_is_created(moor, words, says):
    done = moor("dataset", *words)
    assert done.code == 2
    assert says in done.err
    assert "\x1b" not in done.err
    assert moor.api.named(DATASETS) == []


def test_datasets_are_listed_with_shared_ones(moor):
    moor.api.put(DATASETS, a_dataset(usedBy=[{"namespace": "default", "name": "train", "active": True}]))
    meta = {"namespace": "default", "labels": keyed(dataset="faces", dataset_namespace="lab")}
    moor.api.put(PVCS, an_object(PVCS, reader_claim_name("lab", "faces"), status={"phase": "Bound"}, **meta))
    rows = [row.split()[:3] for row in moor("dataset", "list").out.splitlines()[1:]]
    assert rows == [["photos", "Ready", "3"], ["lab/faces", "Ready", "-"]]


def test_a_dataset_in_use_is_deleted_only_by_force_and_its_users_are_named(moor):
    moor.api.put(DATASETS, a_dataset(usedBy=[{"namespace": "vision", "name": "theirs", "active": True}]))
    put_reader(moor)
    done = moor("dataset", "delete", "photos", "--yes")
    assert done.code == 1
    assert "in use by train, vision/theirs" in done.err
    assert moor.api.named(DATASETS) == ["photos"]
    done = moor("dataset", "delete", "photos", "--yes", "--force")
    assert "train uses the dataset photos and is stopped" in done.err
    assert moor.api.named(DATASETS) == moor.api.named(PODS) == []


def test_only_a_failed_dataset_is_filled_again(moor):
    moor.api.put(DATASETS, a_dataset())
    assert moor("dataset", "refill", "photos").code == 1
    moor.api.put(DATASETS, a_dataset("Failed"))
    assert moor("dataset", "refill", "photos").code == 0
    annotations = moor.api.objects["datasets", "default", "photos"]["metadata"]["annotations"]
    assert annotations["moorage.dev/refill"]


def test_readers_are_added_and_removed(moor):
    moor.api.put(DATASETS, a_dataset())
    moor("dataset", "share", "photos", "--with", "a", "--with", "b")
    assert moor("dataset", "share", "photos", "--without", "a").out == "photos can be read by b\n"


def test_a_run_mounts_a_dataset_read_only_and_has_its_label(moor):
    moor.node("node-1")
    moor.api.put(DATASETS, a_dataset())
    done = moor("run", "--name", "r", "--dataset", "photos:/data", "--", "true")
    assert done.code == 0, done.err
    job = moor.api.objects["jobs", "default", "r"]
    pod = job["spec"]["template"]["spec"]
    claim = {"claimName": "dataset-photos", "readOnly": True}
    assert {"name": "dataset-0", "persistentVolumeClaim": claim} in pod["volumes"]
    mount = {"name": "dataset-0", "mountPath": "/data", "subPath": "data", "readOnly": True}
    assert mount in pod["containers"][0]["volumeMounts"]
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        assert labels["dataset.moorage.dev/photos"] == "default"
        assert labels["moorage.dev/uses-dataset"] == "true"


@pytest.mark.parametrize(
    ("mount", "says"),
    [
        ("full:/data", "not ready: it is Filling"),
        ("none:/data", "dataset 'none' not found"),
        ("lab/faces:/data", "is not shared with namespace default"),
        ("../x:/data", "invalid dataset mount"),
        ("kube-system/../x:/data", "invalid dataset mount"),
        ("photos", "invalid dataset mount"),
        ("photos:/", "cannot be mounted at /"),
        ("photos:/a/../../b", "cannot be mounted"),
        ("photos:/data:rw", "invalid dataset mount"),
    ],
)
def test_a_dataset_that_cannot_be_mounted_is_refused(moor, mount, says):
    moor.node("node-1")
    moor.api.put(DATASETS, a_dataset())
    moor.api.put(DATASETS, a_dataset("Filling", "full"))
    done = moor("run", "--dataset", mount, "--", "true")
    assert done.code == 2
    assert says in done.err
    assert moor.api.named(JOBS) == []


def test_backups_are_made_listed_and_restored(moor):
    moor("volume", "create", "home")
    moor("volume", "create", "new")
    done = moor("volume", "backup", "home", "--to", "s3://b/x", "--schedule", "0 3 * * *", "--keep", "3")
    assert (done.code, done.out) == (0, "home\n")
    obj = moor.api.objects["volumebackups", "default", "home"]
    assert obj["spec"] == {"volume": "home", "to": "s3://b/x", "keep": 3, "schedule": "0 3 * * *"}
    obj["status"] = {"backups": [{"name": "default.home-1", "files": 2, "bytes": 20}]}
    moor.api.put(BACKUPS, obj)
    assert json.loads(moor("volume", "backups", "-o", "json").out)[0]["backup"] == "default.home-1"
    assert moor("volume", "restore", "default.home-1", "--into", "new", "--no-wait").code == 0
    asked = moor.api.objects["volumebackups", "default", "home"]["spec"]["restore"]
    assert (asked["backup"], asked["volume"], asked["force"]) == ("default.home-1", "new", False)
    assert moor("volume", "restore", "default.home-2", "--into", "new").code == 1
    assert moor("volume", "restore", "default.home-1", "--into", "none").code == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--to", "ftp://x"],
        ["--to", "volume:home"],
        ["--to", "/a/../../etc"],
        ["--to", "/"],
        ["--to", "s3://b/x", "--schedule", "whenever"],
    ],
)
def test_a_backup_to_nowhere_or_never_is_refused(moor, words):
    moor("volume", "create", "home")
    assert moor("volume", "backup", "home", *words).code == 2
    assert moor.api.named(BACKUPS) == []


@pytest.mark.parametrize(
    "words", [["a", "b"], ["v:/x", "w:/y"], ["/no/such", "v:/x"], ["v:/../x", "/tmp/y"], ["v:/a\x00b", "/tmp/y"]]
)
def test_an_invalid_copy_is_refused(moor, words):
    done = moor("volume", "cp", *words)
    assert done.code == 2
    assert moor.api.named(PODS) == []


class EndedPods(FakeClock):
    """Each wait ends all pods."""

    def __init__(self, api):
        super().__init__()
        self.api = api

    async def sleep(self, seconds):
        for name in self.api.named(PODS):
            self.api.put(PODS, self.api.objects["pods", "default", name] | {"status": {"phase": "Failed"}})


@pytest.fixture
def member(moor):
    """A user without the right to list nodes; the server knows the image."""
    moor.api.refuse["list", "nodes"] = Forbidden("nodes is forbidden")
    moor.server.answers["/api/v1/helper"] = {"image": "registry/moorage:1", "python": "python"}
    moor.clock = EndedPods(moor.api)
    return moor


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(b"a")
    return folder


def test_a_members_helper_pod_runs_the_image_that_the_server_names(member):
    member("volume", "create", "data")
    images = []
    member.api.on_call = lambda *_: images.extend(
        obj["spec"]["containers"][0]["image"] for key, obj in member.api.objects.items() if key[0] == "pods"
    )
    done = member("volume", "cp", "data:/x", "/tmp/x")
    assert (done.code, "ended at once: Failed" in done.err) == (1, True)
    assert set(images) == {"registry/moorage:1"}
    assert member.api.named(PODS) == []


def test_a_helper_pod_does_not_stay_although_the_answer_to_its_creation_is_lost(member):
    member("volume", "create", "data")
    create = member.api.create

    async def create_and_lose(resource, *args, **options):
        created = await create(resource, *args, **options)
        if resource == PODS:
            raise ServerError("the Kubernetes API gave no answer", status=0)
        return created

    member.api.create = create_and_lose
    done = member("volume", "cp", "data:/x", "/tmp/x")
    assert (done.code, "ended at once: Failed" in done.err) == (1, True)
    assert member.api.named(PODS) == []


def test_without_an_image_nothing_is_created_and_the_hint_names_the_option(member, photos):
    member.server.answers.clear()
    member("volume", "create", "data")
    for words in (["volume", "cp", str(photos), "data:/"], ["dataset", "create", "p", "--source", str(photos)]):
        done = member(*words)
        assert (done.code, "Moorage's image is not known" in done.err, "--image" in done.err) == (2, True, True)
    assert (member.api.named(PODS), member.api.named(PVCS)) == ([], ["data"])


def test_a_helper_that_does_not_start_leaves_no_volume_behind(member, photos):
    done = member("dataset", "create", "p", "--source", str(photos))
    assert (done.code, "ended at once" in done.err) == (1, True)
    assert (member.api.named(PODS), member.api.named(PVCS), member.api.named(DATASETS)) == ([], [], [])


def test_the_volume_of_an_earlier_command_stays(member, photos):
    member("volume", "create", "dataset-p-upload")
    assert member("dataset", "create", "p", "--source", str(photos)).code == 1
    assert member.api.named(PVCS) == ["dataset-p-upload"]


def test_a_name_that_is_taken_is_refused_before_a_file_is_copied(member, photos):
    member.api.put(DATASETS, a_dataset())
    done = member("dataset", "create", "photos", "--source", str(photos))
    assert (done.code, "the name 'photos' is taken" in done.err) == (1, True)
    assert (member.api.named(PODS), member.api.named(PVCS)) == ([], [])


def test_a_folder_with_links_is_refused_before_a_file_is_copied(member, photos):
    (photos / "b.jpg").symlink_to("a.jpg")
    done = member("dataset", "create", "p", "--source", str(photos))
    assert (done.code, "has 1 links or special files in it, such as 'b.jpg'" in done.err) == (2, True)
    assert (member.api.named(PODS), member.api.named(PVCS)) == ([], [])
