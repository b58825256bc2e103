"""Commands of images that steps learn from the nodes of a local cluster."""

from __future__ import annotations

import json

from moorage_workflows.decide.workflows.entrypoints import entrypoints_of


def test_steps_learn_the_commands_from_the_nodes() -> None:
    rules = [{"image": "say", "entrypoint": ["/say"], "cmd": ["x"]}, {"image": "busybox", "cmd": ["sh"]}]
    nodes = [
        {"metadata": {"name": "a", "annotations": {"localcluster.moorage.dev/images": json.dumps(rules)}}},
        {"metadata": {"name": "b", "annotations": {"localcluster.moorage.dev/images": "not JSON"}}},
        {"metadata": {"name": "c"}},
    ]
    known = entrypoints_of(nodes)
    assert known["say:v2"] == (("/say",), ("x",))
    assert known.get("busybox:1", ()) == ((), ("sh",))
    assert known.get("other") is None
    assert list(known) == ["say", "busybox"]
    assert len(known) == 2
