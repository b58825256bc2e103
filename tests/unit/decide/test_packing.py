from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.apimachinery.scheduling import NodeInfo, PodInfo
from moorage.decide.packing import MAX_SCORE, GpuNode, gpu_node, gpus_asked, pack

GPU = "nvidia.com/gpu"


def a_node(total: int = 2, used: int = 0, resource: str = GPU) -> GpuNode:
    return GpuNode(name="n", total={resource: total} if total else {}, used={resource: used} if used else {})


@pytest.mark.parametrize(
    ("asked", "node", "want"),
    [
        pytest.param({GPU: 1}, a_node(2, 1), 10, id="the scene: fills the node in use"),
        pytest.param({GPU: 1}, a_node(2, 0), 5, id="the scene: opens an empty one"),
        pytest.param({GPU: 1}, a_node(8, 2), 3, id="rounded down: 3.75"),
        pytest.param({GPU: 8}, a_node(8, 0), 10, id="a whole node"),
        pytest.param({GPU: 1}, a_node(0), 0, id="no GPUs at all"),
        pytest.param({GPU: 1}, a_node(4, resource="amd.com/gpu"), 0, id="GPUs of another vendor"),
        pytest.param({"amd.com/gpu": 1}, a_node(4, 1, "amd.com/gpu"), 5, id="any vendor's"),
        pytest.param({GPU: 2}, a_node(2, 2), 10, id="one left that we have not seen leave"),
        pytest.param({}, a_node(2), 0, id="no GPU asked: not on a GPU node"),
        pytest.param({}, a_node(0), 10, id="no GPU asked: rather on a node without"),
        pytest.param(
            {GPU: 1, "nvidia.com/mig-1g.5gb": 1},
            GpuNode(name="n", total={GPU: 2, "nvidia.com/mig-1g.5gb": 6}, used={GPU: 1}),
            3,
            id="two kinds: all of them together",
        ),
    ],
)
def test_a_node_scores_by_how_full_its_gpus_would_be(asked, node, want):
    assert pack(asked, node) == want


counts = st.integers(0, 16)


@given(st.dictionaries(st.sampled_from([GPU, "amd.com/gpu"]), st.integers(1, 16)), counts, counts)
def test_points_are_integers_from_0_to_10(asked, total, used):
    points = pack(asked, a_node(total, used))
    assert isinstance(points, int)
    assert 0 <= points <= MAX_SCORE


@given(st.integers(1, 16), st.integers(1, 16), counts, counts)
def test_of_two_like_nodes_the_fuller_never_scores_lower(asked, total, one, other):
    low, high = sorted((one, other))
    assert pack({GPU: asked}, a_node(total, low)) <= pack({GPU: asked}, a_node(total, high))


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 8))
def test_of_nodes_up_to_ten_gpus_the_fuller_scores_strictly_higher(asked, total, used):
    if used + 1 + asked <= total:
        assert pack({GPU: asked}, a_node(total, used)) < pack({GPU: asked}, a_node(total, used + 1))


@given(st.integers(1, 16), st.data())
def test_ten_points_mean_that_the_node_is_filled_exactly(total, data):
    used = data.draw(st.integers(0, total - 1))
    asked = data.draw(st.integers(1, total - used))
    assert (pack({GPU: asked}, a_node(total, used)) == 10) is (asked + used == total)


@given(st.integers(1, 4), st.integers(2, 8), st.lists(st.integers(1, 4), max_size=20))
def test_one_gpu_at_a_time_no_node_is_opened_while_another_has_room(nodes, size, leaving):
    """Arrivals of one GPU on like nodes, chosen by the points alone."""
    used = [0] * nodes
    for _ in range(min(len(leaving), nodes * size)):
        room = [at for at in range(nodes) if used[at] < size]
        at = max(room, key=lambda one: (pack({GPU: 1}, a_node(size, used[one])), -one))
        assert used[at] > 0 or all(used[one] in (0, size) for one in range(nodes))
        used[at] += 1


def test_the_gpu_side_of_a_node_counts_pods_that_are_not_finished():
    node = NodeInfo(name="n", allocatable={"cpu": 4000, GPU: 4})
    pods = (
        PodInfo(namespace="a", name="one", requests={"cpu": 1000, GPU: 1}),
        PodInfo(namespace="a", name="two", requests={GPU: 2}, phase="Running"),
        PodInfo(namespace="a", name="done", requests={GPU: 1}, phase="Succeeded"),
    )
    assert gpu_node(node, pods) == GpuNode(name="n", total={GPU: 4}, used={GPU: 3})


def test_only_gpus_that_are_asked_for_count():
    assert gpus_asked({"cpu": 1, GPU: 0, "amd.com/gpu": 2, "example.com/fpga": 1}) == {"amd.com/gpu": 2}
