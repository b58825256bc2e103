"""The secrets of a run: how they are named, and where they are in its pod."""

from __future__ import annotations

import json

import pytest

from moorage.decide.maps.mapjob import MapRequest, plan_mapjob
from moorage.decide.runs.job import plan_run
from moorage.decide.runs.request import Caller, ClusterFacts, RunRequest
from moorage.decide.runs.runfile import parse_run_file, stored_request
from moorage.decide.runs.secrets import SecretRef, parse_secret
from moorage.model.secrets import used_secrets

KNOWN = ClusterFacts(nodes=None, secrets={"hf": ("HF_TOKEN",), "s3": ("KEY", "PASSWORD")})
ADA = Caller(user="ada", cwd="", program="true", token="t", runner="pass")


def planned(*secrets, facts=KNOWN, **more):
    request = RunRequest(command=("true",), name="train", image="x", secrets=secrets, **more)
    return plan_run(request, ADA, facts)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("hf", SecretRef(name="hf")),
        ("hf:HF_TOKEN", SecretRef(name="hf", key="HF_TOKEN", variable="HF_TOKEN")),
        ("TOKEN=hf:HF_TOKEN", SecretRef(name="hf", key="HF_TOKEN", variable="TOKEN")),
        ("gcs:/keys/a=b", SecretRef(name="gcs", path="/keys/a=b")),
        *((text, None) for text in ("", "HF", "hf:", "=hf:K", "T=hf", "T=hf:/x", ":K", "a/b", "hf:K:")[:8]),
    ],
)
def test_a_use_of_a_secret_is_parsed(text, want):
    assert parse_secret(text) == want


def test_secrets_are_variables_or_files_of_the_pod_and_no_value_is_read():
    plan = planned("s3", "TOKEN=hf:HF_TOKEN", "hf:/keys", checkpoint="data")
    spec = plan.job["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    source = {"secretKeyRef": {"name": "hf", "key": "HF_TOKEN"}}
    assert {"name": "TOKEN", "valueFrom": source} in container["env"]
    assert {"name": "secret-0", "mountPath": "/keys", "readOnly": True} in container["volumeMounts"]
    assert {"name": "secret-0", "secret": {"secretName": "hf"}} in spec["volumes"]
    assert set(used_secrets(plan.job)) == {"s3", "hf", plan.secret["metadata"]["name"]}
    assert stored_request(plan.job).secrets == ("s3", "TOKEN=hf:HF_TOKEN", "hf:/keys")


def test_the_workers_of_a_map_get_them_too():
    run = RunRequest(command=("a", "{item}"), name="m", image="x", secrets=("s3", "hf:HF_TOKEN", "hf:/keys"))
    plan = plan_mapjob(MapRequest(run=run), ADA, KNOWN)
    assert plan.problems == ()
    assert sorted(used_secrets(plan.mapjob)) == ["hf", "hf", "s3"]


@pytest.mark.parametrize(
    ("secrets", "more", "message", "hint"),
    [
        (("no",), {}, "secret 'no' not found in namespace default", "available: hf, s3"),
        (("s3:X",), {}, "secret 's3' has no key 'X'", "its keys: KEY, PASSWORD"),
        (("S3",), {}, "invalid secret 'S3'", "write NAME, NAME:KEY, VARIABLE=NAME:KEY or NAME:/PATH"),
        (("MOORAGE_RUN=s3:KEY",), {}, "variable MOORAGE_RUN is set by Moorage itself", None),
        (("1=s3:KEY",), {}, "invalid variable name '1'", "write VARIABLE=NAME:KEY"),
        (("s3:KEY",), {"env": ("KEY=1",)}, "variable KEY is set twice: by env and by secret s3", None),
        (("s3:/moorage/x",), {}, "'s3:/moorage/x' cannot be mounted at /moorage/x", "choose a path such as /data"),
    ],
)
def test_a_wrong_secret_is_refused_before_anything_is_created(secrets, more, message, hint):
    [problem] = planned(*secrets, **more).problems
    assert (problem.field, problem.message, problem.hint) == ("secrets", message, hint)


def test_without_any_secret_the_hint_creates_it():
    [problem] = planned("hf:HF_TOKEN", facts=ClusterFacts(nodes=None, secrets={})).problems
    assert problem.hint == "create it: moor secret create hf HF_TOKEN"


def test_secrets_that_may_not_be_listed_are_not_judged():
    assert planned("hf", facts=ClusterFacts(nodes=None)).problems == ()


def test_a_run_file_names_secrets():
    assert parse_run_file({"command": "true", "secrets": ["hf", "s3:KEY"]})["secrets"] == ("hf", "s3:KEY")


def test_the_stored_options_have_names_only():
    plan = planned("hf", env=("HF_HOME=/x",))
    assert json.loads(plan.job["metadata"]["annotations"]["moorage.dev/options"])["secrets"] == ["hf"]
