"""What an agent keeps of one pod."""

from __future__ import annotations

from moorage_local.nodeagent.podstate import MOUNT_EVENT_SECONDS, PodState


def test_a_volume_that_cannot_be_mounted_is_told_again_for_another_reason_and_after_a_while() -> None:
    state = PodState()
    told = [
        state.is_news("secret", 0.0),
        state.is_news("secret", 1.0),
        state.is_news("configmap", 2.0),
        state.is_news("configmap", 2.0 + MOUNT_EVENT_SECONDS - 1),
        state.is_news("configmap", 2.0 + MOUNT_EVENT_SECONDS),
        state.is_news("configmap", 2.0 + MOUNT_EVENT_SECONDS + 1),
    ]
    assert told == [True, False, True, False, True, False]


def test_the_same_reason_after_a_start_is_news() -> None:
    state = PodState()
    assert state.is_news("secret", 0.0)
    state.started((1, 1), 1.0)
    assert state.is_news("secret", 2.0)
