"""What the end of a command says."""

from __future__ import annotations

import json

import pytest

from moorage_kube.errors import Forbidden, ServerError
from moorage_kube.remote.exec import exit_code_of


def failed(code: str) -> bytes:
    causes = [{"reason": "ExitCode", "message": code}]
    return json.dumps({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}).encode()


@pytest.mark.parametrize(("status", "code"), [(b'{"metadata":{},"status":"Success"}', 0), (failed("137"), 137)])
def test_exit_codes(status: bytes, code: int) -> None:
    assert exit_code_of(status) == code


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (b'{"status":"Failure","reason":"InternalError","code":500,"message":"no runtime"}', ServerError),
        (b'{"status":"Failure","reason":"Forbidden","code":403,"message":"no"}', Forbidden),
        (failed("many"), ServerError),
        (failed("-1"), ServerError),
        (failed("4294967296"), ServerError),
        (b'{"reason":"NonZeroExitCode","details":"none"}', ServerError),
        (b'{"reason":"NonZeroExitCode","details":{"causes":["one"]}}', ServerError),
        (b'{"reason":"NonZeroExitCode","details":{"causes":7}}', ServerError),
        (b'{"status":"Failure","code":"many"}', ServerError),
        (b'{"status":"Failure","code":1e400}', ServerError),
        (b'{"status":"Failure","code":[500]}', ServerError),
        (b"not json", ServerError),
    ],
)
def test_a_command_that_was_not_run_is_an_error(status: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        exit_code_of(status)
