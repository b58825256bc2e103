"""Each part of a MapJob's status has one writer."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.model.mapjob import CONDITION_WRITERS, STATUS_WRITERS, MapJobStatus, Writer, status_patch

ACCEPTED = {"type": "Accepted", "status": "True"}
WORKING = {"type": "Working", "status": "False"}


def test_every_field_of_the_status_has_a_writer_but_what_nobody_writes():
    assert set(MapJobStatus.__struct_encode_fields__) - set(STATUS_WRITERS) == {"plan", "conditions"}
    assert set(CONDITION_WRITERS.values()) == set(Writer)


def test_a_writer_patches_what_it_has():
    assert status_patch(Writer.SERVER, {"state": "running"}) == {"state": "running"}
    wanted = {"workers": {}, "conditions": [ACCEPTED, WORKING]}
    assert status_patch(Writer.OPERATOR, {"workers": {}}, [ACCEPTED], [ACCEPTED, WORKING]) == wanted


@pytest.mark.parametrize(
    ("writer", "fields", "conditions"),
    [
        (Writer.SERVER, {"workers": {}}, None),
        (Writer.OPERATOR, {"items": {}}, None),
        (Writer.OPERATOR, {"unknown": 1}, None),
        (Writer.OPERATOR, {}, [ACCEPTED | {"status": "False"}]),
        (Writer.SERVER, {}, [WORKING]),
    ],
)
def test_what_the_other_has_is_refused(writer: Writer, fields: dict[str, Any], conditions: Any):
    with pytest.raises(ValueError, match=f"the {writer} does not write"):
        status_patch(writer, fields, [ACCEPTED], conditions)
