"""What the services read from the environment, and what is said when it cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moorage.cli.datafolder import DataFolder
from moorage.cli.services import login_settings, usage_days
from moorage.errors import UsageError
from moorage.model.retention import AUDIT_DAYS, USAGE_DAYS


@pytest.mark.parametrize("text", ["0", "-1", "abc", "36501", "1.5", "²"])
def test_days_that_would_delete_all_history_are_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"MOORAGE_USAGE_DAYS must be a whole number from 1 to 36500"):
        usage_days({"MOORAGE_USAGE_DAYS": text})
    with pytest.raises(UsageError, match=r"MOORAGE_AUDIT_DAYS must be a whole number from 1 to 3650\b"):
        login_settings({"MOORAGE_AUDIT_DAYS": text})


def test_days_are_read_and_usual_where_none_are_given() -> None:
    assert usage_days({}) == usage_days({"MOORAGE_USAGE_DAYS": ""}) == USAGE_DAYS
    assert usage_days({"MOORAGE_USAGE_DAYS": "30"}) == 30
    assert login_settings({}).audit_days == AUDIT_DAYS
    assert login_settings({"MOORAGE_AUDIT_DAYS": "7"}).audit_days == 7


def test_a_start_that_the_environment_forbids_tells_who_waits_why(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    told, telling = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "moorage.cli.services", "--data", folder.path, "--ready-fd", str(telling)],
            env=os.environ | {"MOORAGE_USAGE_DAYS": "0"},
            pass_fds=[telling],
            capture_output=True,
            text=True,
            check=False,
        )
        os.close(telling)
        assert os.read(told, 4096).startswith(b"services MOORAGE_USAGE_DAYS must be a whole number")
    finally:
        os.close(told)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
