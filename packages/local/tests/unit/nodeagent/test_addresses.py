"""Addresses of pods."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_address

from hypothesis import given
from hypothesis import strategies as st

from moorage_local.nodeagent.addresses import HOST_IP, NETWORK, Addresses

SMALL = IPv4Network("127.64.0.0/29")  # 127.64.0.1 to 7: .0 is never given

steps = st.lists(st.tuples(st.sampled_from(["take", "give back", "keep"]), st.sampled_from("abcdefghij")))


@given(steps)
def test_no_two_pods_that_live_have_the_same_address_and_all_are_given_before_none_is_left(
    steps: list[tuple[str, str]],
) -> None:
    addresses, has = Addresses(own=True, network=SMALL), dict[str, str]()
    for what, uid in steps:
        if what == "give back":
            addresses.give_back(uid)
            has.pop(uid, None)
        elif what == "keep" and uid in has:
            addresses.keep(uid, has[uid])
        else:
            got = addresses.take(uid)
            if uid in has:
                assert got == has[uid]
            elif got == HOST_IP:
                assert len(has) == 7
            else:
                assert got not in has.values()
                assert ip_address(got) in SMALL
                has[uid] = got


def test_an_address_follows_from_the_uid_so_that_two_clusters_choose_different_ones() -> None:
    uids = [f"5d4f8f2e-{at}" for at in range(1000)]
    first, second = Addresses(own=True), Addresses(own=True)
    assert [first.take(uid) for uid in uids] == [second.take(uid) for uid in uids]
    assert all(ip_address(first.take(uid)) in NETWORK for uid in uids)


def test_what_a_pod_keeps_is_given_to_no_other() -> None:
    kept, fresh = Addresses(own=True).take("a"), Addresses(own=True)
    fresh.keep("b", kept)
    assert fresh.take("a") != kept
    assert fresh.take("b") == kept


def test_a_machine_without_such_addresses_has_one_for_all() -> None:
    addresses = Addresses(own=False)
    assert {addresses.take("a"), addresses.take("b")} == {HOST_IP}
