"""A cluster in memory for the verbs."""

from __future__ import annotations

import pytest

from moorage_local.testing.fakeapi import FakeApi


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()
