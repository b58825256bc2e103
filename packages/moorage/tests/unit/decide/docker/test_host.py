"""Images and the use of containers, as Docker's clients read them."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from moorage.decide.docker.create import Around, plan_container
from moorage.decide.docker.host import (
    Image,
    find_image,
    full_name,
    image_id,
    image_matches,
    images_of,
    show_image,
    show_processes,
    show_stats,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64


def of_image(image: str, **status: str):
    pod = plan_container({"Image": image}, "web", Around(namespace="vision")).pod
    return json.loads(json.dumps(pod)) | {"status": {"containerStatuses": [{"name": "main"} | status]}}


def test_images_are_those_pulled_and_those_of_containers_with_the_sizes_of_the_nodes():
    containers = [of_image("python:3.12", imageID=f"docker.io/library/python@{DIGEST}"), of_image("python:3.12")]
    nodes = [{"status": {"images": [{"names": ["docker.io/library/python:3.12"], "sizeBytes": 7}]}}, {}]
    assert images_of(["redis:latest"], containers, nodes) == [
        Image(name="python:3.12", digest=DIGEST, size_bytes=7, containers=2),
        Image(name="redis:latest"),
    ]


@pytest.mark.parametrize("word", ["redis", "docker.io/library/redis:latest", image_id("redis")[:19]])
def test_an_image_is_known_by_name_and_id(word):
    redis = Image(name="redis:latest", digest=DIGEST)
    assert find_image([Image(name="python:3.12"), redis], word) == redis
    shown = show_image(redis)
    assert (shown["RepoTags"], shown["RepoDigests"]) == (["redis:latest"], [f"redis@{DIGEST}"])


def test_a_short_prefix_or_another_tag_is_not_an_image():
    assert find_image([Image(name="redis:latest")], image_id("redis")[7:15]) is None
    assert find_image([Image(name="redis:latest")], "redis:7") is None
    assert full_name(f"redis@{DIGEST}") == f"redis@{DIGEST}"


@pytest.mark.parametrize(
    ("filters", "passes"),
    [({}, True), ({"reference": ["red*"]}, True), ({"reference": ["x"]}, False), ({"dangling": ["true"]}, False)],
)
def test_filters_of_docker_images(filters, passes):
    assert image_matches(Image(name="redis:latest"), filters) is passes


def test_an_unknown_filter_of_images_is_refused():
    with pytest.raises(ValueError, match="invalid filter 'label': use dangling or reference"):
        image_matches(Image(name="redis:latest"), {"label": ["x"]})


def test_dockers_formula_gives_the_measured_cpu_use():
    shown = show_stats({"Id": "i", "Name": "/web"}, at=NOW, cpu_milli=1500, memory_bytes=3, memory_limit=9, cpus=4)
    cpu, before = shown["cpu_stats"], shown["precpu_stats"]
    used = cpu["cpu_usage"]["total_usage"] - before["cpu_usage"]["total_usage"]
    of = cpu["system_cpu_usage"] - before["system_cpu_usage"]
    assert used / of * cpu["online_cpus"] * 100 == 150
    assert (shown["memory_stats"]["usage"], shown["memory_stats"]["limit"]) == (3, 9)


def test_the_output_of_ps_becomes_titles_and_rows():
    assert show_processes("PID CMD\n 1 sleep 600\n") == {
        "Titles": ["PID", "CMD"],
        "Processes": [["1", "sleep 600"]],
    }
    assert show_processes("") == {"Titles": [], "Processes": []}


def test_on_a_local_cluster_only_the_processes_of_the_pod_are_shown():
    tree = (
        "    1     0 init\n   70     1 podshim podshim.py /nodes/n1/u-1\n"
        "   71    70 podshim podshim.py /nodes/n1/u-1\n"
        "   72    71 sh -c sleep 600\n   73    72 sleep 600\n   80     1 podshim podshim.py /nodes/n1/u-2\n"
        "   81    80 cat\n"
    )
    table = "  PID CMD\n    1 init\n   71 podshim\n   72 sh -c sleep 600\n   73 sleep 600\n   81 cat\n"
    assert show_processes(f"{tree}\n{table}", uid="u-1") == {
        "Titles": ["PID", "CMD"],
        "Processes": [["72", "sh -c sleep 600"], ["73", "sleep 600"]],
    }
    with pytest.raises(ValueError, match="no column PID"):
        show_processes(f"{tree}\nCMD\ninit\n", uid="u-1")
