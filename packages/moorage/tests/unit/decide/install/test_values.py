"""What an admin chooses when installing: read, refused with all reasons, put together, and shown again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cli.manifests import objects
from moorage.decide.install.overlay import overlay
from moorage.decide.install.record import InstallRecord, Ref, make_record, parse_record
from moorage.decide.install.values import (
    InstallValues,
    adopted,
    image_for,
    merged,
    parse_values,
    parse_version,
    tag_of,
    with_tag,
)
from moorage_kube.errors import InvalidName, NotReady, Problems

SHIPPED = [obj for objs in objects().values() for obj in objs]

names = st.from_regex(r"[a-z]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
documents = st.fixed_dictionaries(
    {},
    optional={
        "image": names.map(lambda name: f"registry.example.org:5000/{name}:0.1.0"),
        "publicUrl": names.map(lambda name: f"https://{name}.example.org"),
        "kubernetesUrl": names.map(lambda name: f"https://{name}.example.org:6443"),
        "workspaceUrl": names.map(lambda name: f"https://*.{name}.example.org"),
        "ingressClass": names,
        "tlsSecret": names,
        "storageClass": names,
        "pauseImage": names,
        "runImage": names,
        "scheduler": st.sampled_from(("second", "configure", "none")),
        "databaseSecret": names,
        "replicas": st.dictionaries(st.sampled_from(("webhook", "server")), st.integers(0, 100), min_size=1),
        "resources": st.just({"server": {"requests": {"cpu": "100m", "memory": "256Mi"}}}),
        "nodeSelector": st.dictionaries(names, names, min_size=1),
        "tolerations": st.just([{"key": "infra", "operator": "Exists"}]),
        "imagePullSecrets": st.lists(names, min_size=1),
    },
)


@given(documents)
def test_values_read_from_what_they_are_written_as_are_the_same(document):
    values = parse_values(document)
    assert parse_values(values.to_document()) == values
    record = InstallRecord(values=document, version="1", objects=())
    assert parse_values(dict(parse_record(make_record(record)).values)) == values


@pytest.mark.parametrize(
    ("document", "messages"),
    [
        ([], ["values is not a mapping of names to values"]),
        ({"publicURL": "https://a"}, ["values has an unknown name 'publicURL'"]),
        (
            {"publicUrl": "moorage.example.org", "scheduler": "both", "replicas": {"server": -1}},
            [
                "values: publicUrl is 'moorage.example.org': use an address such as https://moorage.example.org",
                "values: scheduler is 'both': use one of second, configure, none",
                "values: replicas is {'server': -1}: server has -1: use a number from 0 to 100",
            ],
        ),
        (
            {"workspaceUrl": "https://apps.example.org"},
            [
                "values: workspaceUrl is 'https://apps.example.org': use an address such as"
                " https://*.apps.example.org"
            ],
        ),
        ({"image": "a b"}, ["values: image is 'a b': use an image such as registry.example.org/moorage:0.1.0"]),
        (
            {"replicas": {"scheduler": 2}},
            [
                "values: replicas is {'scheduler': 2}: scheduler is no service: use operator, webhook, extender,"
                " server"
            ],
        ),
        ({"imagePullSecrets": "x"}, ["values: imagePullSecrets is 'x': use a list of names of Secrets"]),
        ({"tolerations": [{"keys": "x"}]}, None),
        ({"resources": {"server": {"requests": {"cpu": "much"}}}}, None),
        ({"nodeSelector": {"a": 1}}, None),
        ({"tlsSecret": "Not_A_Name"}, None),
        ({"kubernetesUrl": 1}, None),
    ],
)
def test_values_that_cannot_be_are_refused_all_at_once(document, messages):
    with pytest.raises(Problems) as refused:
        parse_values(document)
    problems = [message for message, _ in refused.value.problems]
    assert len(problems) == 1 if messages is None else problems == messages


def test_a_mistyped_name_is_guessed():
    with pytest.raises(Problems) as refused:
        parse_values({"publicURL": "https://a"})
    assert refused.value.hint == "did you mean publicUrl?"


def test_an_option_wins_over_the_file_and_the_file_over_what_was_kept():
    kept = {"publicUrl": "https://old.example.org", "storageClass": "fast", "image": "moorage:0.1.0"}
    file = {"publicUrl": "https://file.example.org", "storageClass": ""}
    assert merged(kept, file, {"publicUrl": "https://typed.example.org"}) == {
        "publicUrl": "https://typed.example.org",
        "image": "moorage:0.1.0",
    }


def test_what_an_admin_wrote_into_the_info_is_adopted():
    info = {"serverUrl": "http://x", "version": "0.1.0", "publicUrl": "https://m.org", "ingressTlsSecret": "tls", "workspaceUrl": ""}  # fmt: skip # noqa: E501
    assert adopted(info, "registry/moorage:0.1.0") == {
        "publicUrl": "https://m.org",
        "tlsSecret": "tls",
        "image": "registry/moorage:0.1.0",
    }


@pytest.mark.parametrize(
    ("image", "tag", "renewed"),
    [
        ("moorage", "", "moorage:2"),
        ("moorage:1", "1", "moorage:2"),
        ("registry:5000/moorage", "", "registry:5000/moorage:2"),
        ("registry:5000/a/moorage:v1", "v1", "registry:5000/a/moorage:2"),
    ],
)
def test_tags_of_images_are_told_from_ports_of_registries(image, tag, renewed):
    assert (tag_of(image), with_tag(image, "2")) == (tag, renewed)


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ("r/moorage:0.1.0", "r/moorage:0.2.0"),
        ("r/moorage:v0.1.0", "r/moorage:0.2.0"),
        ("r/moorage:lab", ""),
        ("r/moorage@sha256:" + "0" * 64, ""),
        ("", ""),
    ],
)
def test_an_upgrade_takes_the_image_of_the_new_version_where_the_tag_was_the_version(image, wanted):
    assert image_for(image, kept_version="0.1.0", version="0.2.0") == wanted
    assert image_for(image, kept_version="0.2.0", version="0.2.0") == image


def test_versions_compare_as_numbers():
    assert parse_version("v1.36.2") > parse_version("1.9") > parse_version("0.10.0-rc1") > parse_version("0.9.9")
    with pytest.raises(InvalidName):
        parse_version("latest")


def test_default_values_change_nothing_of_what_is_shipped():
    assert overlay(SHIPPED, InstallValues()) == SHIPPED


def test_values_are_put_on_the_objects():
    values = parse_values(
        {
            "image": "registry.example.org/moorage:1",
            "publicUrl": "https://moorage.example.org",
            "tlsSecret": "web-tls",
            "storageClass": "fast",
            "replicas": {"server": 1},
            "resources": {"server": {"limits": {"memory": "4Gi"}}},
            "nodeSelector": {"infra": "yes"},
            "tolerations": [{"key": "infra", "operator": "Exists"}],
            "imagePullSecrets": ["pull"],
        }
    )
    by_name = {(obj["kind"], obj["metadata"]["name"]): obj for obj in overlay(SHIPPED, values)}
    data = by_name["ConfigMap", "moorage"]["data"]
    assert (data["publicUrl"], data["ingressTlsSecret"]) == ("https://moorage.example.org", "web-tls")
    assert by_name["PersistentVolumeClaim", "moorage-usage"]["spec"]["storageClassName"] == "fast"
    server = by_name["Deployment", "moorage-server"]["spec"]
    pod, (container,) = server["template"]["spec"], server["template"]["spec"]["containers"]
    assert server["replicas"] == 1
    assert container["image"] == "registry.example.org/moorage:1"
    assert container["resources"]["limits"] == {"memory": "4Gi"}
    assert (pod["nodeSelector"], pod["imagePullSecrets"]) == ({"infra": "yes"}, [{"name": "pull"}])
    assert pod["tolerations"] == [{"key": "infra", "operator": "Exists"}]
    assert by_name["Deployment", "moorage-webhook"]["spec"]["replicas"] == 2
    assert overlay(SHIPPED, InstallValues()) == SHIPPED  # nothing of what is shipped was changed


def test_with_a_database_the_server_has_two_replicas_and_no_volume_of_its_own():
    values = parse_values({"databaseSecret": "postgres", "storageClass": "fast"})
    objects = overlay(SHIPPED, values)
    assert [obj for obj in objects if obj["kind"] == "PersistentVolumeClaim"] == []
    (server,) = [obj["spec"] for obj in objects if obj["metadata"]["name"] == "moorage-server" and "spec" in obj
                 and obj["kind"] == "Deployment"]  # fmt: skip
    pod = server["template"]["spec"]
    (container,) = pod["containers"]
    (queue,) = [entry for entry in container["env"] if entry["name"] == "MOORAGE_QUEUE_URL"]
    assert queue["valueFrom"] == {"secretKeyRef": {"name": "postgres", "key": "url"}}
    assert server["replicas"] == 2
    assert server["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume] == []
    assert {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}} in pod["volumes"]
    assert pod["topologySpreadConstraints"][0]["labelSelector"] == {
        "matchLabels": server["selector"]["matchLabels"]
    }
    three = overlay(SHIPPED, parse_values({"databaseSecret": "postgres", "replicas": {"server": 3}}))
    assert [obj["spec"]["replicas"] for obj in three if obj["metadata"]["name"] == "moorage-server"
            and obj["kind"] == "Deployment"] == [3]  # fmt: skip


def test_the_info_that_is_shipped_holds_no_key_of_the_admins():
    """An apply would take it back to what is shipped."""
    (info,) = [obj for obj in SHIPPED if obj["kind"] == "ConfigMap" and obj["metadata"]["name"] == "moorage"]
    assert set(info["data"]) == {"serverUrl", "version"}


def test_what_is_kept_is_shipped_by_nothing():
    kept = make_record(InstallRecord(values={}, version="1", objects=()))
    assert Ref.of(kept) not in {Ref.of(obj) for obj in SHIPPED}


def test_a_broken_record_of_an_installation_is_told_of():
    with pytest.raises(NotReady) as refused:
        parse_record({"data": {"values": "{", "version": "1"}})
    assert "moorage-install cannot be read" in refused.value.message
