"""Amounts in the resources of containers, as the API server judges them."""

from __future__ import annotations

import pytest

from moorage_kube.containerresources import NO_LIMIT, amount_problems, is_part_of_byte, request_problem


@pytest.mark.parametrize(
    ("resource", "text", "problems"),
    [
        ("nvidia.com/gpu", "0.5", ["must be an integer"]),
        ("nvidia.com/gpu", "1000m", []),
        ("amd.com/gpu", "-0.5", ["must be greater than or equal to 0", "must be an integer"]),
        ("cpu", "500m", []),
        ("memory", "much", ["must be a quantity"]),
    ],
)
def test_one_amount(resource, text, problems):
    assert list(amount_problems(resource, text)) == problems


@pytest.mark.parametrize(
    ("resource", "request_", "limit", "problem"),
    [
        ("nvidia.com/gpu", "1", "2", "must be equal to nvidia.com/gpu limit of 2"),
        ("nvidia.com/gpu", "1", None, NO_LIMIT),
        ("nvidia.com/gpu", "2", "2000m", ""),
        ("hugepages-2Mi", "2Mi", "4Mi", "must be equal to hugepages-2Mi limit of 4Mi"),
        ("cpu", "2", "1", "must be less than or equal to cpu limit of 1"),
        ("cpu", "1", "2", ""),
        ("memory", "1Gi", None, ""),
    ],
)
def test_a_request_with_its_limit(resource, request_, limit, problem):
    assert request_problem(resource, request_, limit) == problem


@pytest.mark.parametrize(
    ("resource", "text", "want"),
    [
        ("memory", "400m", True),
        ("memory", "0.1Gi", True),
        ("memory", "1.5Gi", False),
        ("cpu", "400m", False),
        ("ephemeral-storage", "much", False),
    ],
)
def test_parts_of_a_byte(resource, text, want):
    assert is_part_of_byte(resource, text) == want
