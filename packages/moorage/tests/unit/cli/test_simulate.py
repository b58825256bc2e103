from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from moorage.cli.main import main
from moorage.cli.simulate import draw

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{at},96000,393216,8,A100\n" for at in range(4))
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,8000,1024,1,1000\nb,64000,1024,8,1000\nc,1000,64,1,500\n"


@pytest.fixture
def trace(tmp_path):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return ["simulate", "--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]


@pytest.mark.processes
def test_policies_are_compared_in_a_table_with_the_bound_and_a_plot(trace, tmp_path, capsys):
    plot = tmp_path / "out.svg"
    assert (
        main([*trace, "--policy", "pack", "--policy", "fragmentation", "--seeds", "1", "--plot", str(plot)]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("   ")[0] for line in lines] == ["POLICY", "pack", "fragmentation", "(no policy beyond)"]
    assert ElementTree.fromstring(plot.read_text()).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.processes
def test_figures_come_as_json_too(trace, capsys):
    assert main([*trace, "--policy", "spread", "--seeds", "2", "--whole-gpus", "-o", "json"]) == 0
    (figures,) = json.loads(capsys.readouterr().out)
    assert figures["policy"] == "spread"
    assert len(figures["allocatedBySeed"]) == 2
    assert 0 < figures["allocated"] <= figures["allocatedBound"] == 1.0


def test_a_file_that_is_no_trace_is_named(trace, tmp_path, capsys):
    (tmp_path / "pods.csv").write_text("name,cpu_milli\na,1\n")
    assert main(trace) == 2
    assert "pods.csv: the trace has no column memory_mib (line 2)" in capsys.readouterr().err


def test_the_plot_names_every_policy():
    text = draw({"pack": [(0.0, 0.0), (0.9, 0.9)], "spread": [(0.9, 0.8)]}, 0.99)
    words = [element.text for element in ElementTree.fromstring(text).iter() if element.text]
    assert {"pack", "spread", "no policy beyond 99.0%"} <= set(words)


def test_a_plot_that_would_be_no_svg_is_refused_before_anything_is_played(trace, tmp_path, capsys):
    assert main([*trace, "--plot", str(tmp_path / "packing.png")]) == 2
    assert "use a name that ends in .svg" in capsys.readouterr().err


@pytest.mark.processes
def test_slices_of_gpus_are_a_resource_of_their_own(trace, tmp_path, capsys):
    (tmp_path / "nodes.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model,resource\n"
        "whole,96000,393216,8,A100,\nsliced,96000,393216,14,A100,nvidia.com/mig-1g.10gb\n"
    )
    (tmp_path / "pods.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,resource\n"
        "a,1000,64,1,1000,nvidia.com/mig-1g.10gb\nb,8000,1024,2,1000,nvidia.com/gpu\n"
    )
    assert main([*trace, "--policy", "fragmentation", "--seeds", "1", "--handler", "-o", "json"]) == 0
    (figures,) = json.loads(capsys.readouterr().out)
    assert figures["allocated"] > 0.5
    whole_gpus_asked = 8 + 22 / 3  # of 22; 8 are there
    assert figures["allocatedBound"] == pytest.approx(whole_gpus_asked / 22, abs=1e-6)
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli,resource\na,1,1,1,1000,disk\n")
    assert main(trace) == 2
    assert "line 2: resource is 'disk', which counts no GPUs" in capsys.readouterr().err
