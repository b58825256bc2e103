from __future__ import annotations

from fractions import Fraction

import pytest

from moorage.decide.usage.devices import counts_of, counts_text, gpus_of, read_counts, share_of


@pytest.mark.parametrize(
    ("resource", "labels", "want"),
    [
        ("nvidia.com/gpu", {}, Fraction(1)),
        ("amd.com/gpu", {}, Fraction(1)),
        ("nvidia.com/mig-1g.10gb", {}, Fraction(1, 7)),
        ("nvidia.com/mig-3g.40gb", {}, Fraction(3, 7)),
        ("nvidia.com/gpu.shared", {"nvidia.com/gpu.replicas": "4"}, Fraction(1, 4)),
        ("nvidia.com/gpu", {"nvidia.com/gpu.replicas": "4"}, Fraction(1, 4)),
        ("nvidia.com/gpu", {"nvidia.com/gpu.replicas": "many"}, Fraction(1)),
        ("nvidia.com/mig-1g.10gb.shared", {"nvidia.com/mig-1g.10gb.replicas": "2"}, Fraction(1, 14)),
    ],
)
def test_a_unit_of_a_resource_is_a_part_of_a_whole_gpu(resource, labels, want):
    assert share_of(resource, labels) == want


def test_counts_are_read_back_as_they_were_written():
    counts = counts_of({"nvidia.com/gpu.shared": 16, "cpu": 4000, "nvidia.com/mig-1g.10gb": 7, "amd.com/gpu": 0})
    shares = {"nvidia.com/gpu.shared": Fraction(1, 4), "nvidia.com/mig-1g.10gb": Fraction(1, 7)}
    text = counts_text(counts, shares)
    assert text == "nvidia.com/gpu.shared=16:1/4 nvidia.com/mig-1g.10gb=7:1/7"
    assert read_counts(text) == (counts, shares)
    assert gpus_of(counts, shares) == 5
    assert read_counts("") == ((), {})
