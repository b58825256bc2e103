from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from moorage.cli.main import main
from moorage_kube.resources import NODES, PODS
from moorage_kube.testing.builders import a_node, a_pod, an_owner

EXAMPLE = Path(__file__).parents[5] / "examples" / "plan" / "prices.yaml"
SEED = ["plan", "--items", "150000", "--memory", "2Gi", "--machines", str(EXAMPLE), "--region", "us-west1"]


def test_the_seeds_estimate_is_the_marked_row(capsys):
    assert main([*SEED, "--seconds", "4", "--parallelism", "3600", "--hold", "20m"]) == 0
    shown = capsys.readouterr()
    row = ["*", "n1-standard-96", "us-west1", "spot", "38", "3,600", "2m48s", "2m48s", "12.16"]
    assert shown.out.splitlines()[1].split()[:9] == row
    assert "note: quotas do not apply: none is given" in shown.err
    assert "days old; check that they are still right" in shown.err


def test_the_seeds_measured_run_foretells_38_nodes_and_itself(capsys):
    run = ["--from-run", "nodes=6,machine=n1-standard-96,time=1.5h", "--nodes", "6", "--nodes", "38"]
    assert main([*SEED, *run, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    by_nodes = {choice["nodes"]: choice for choice in document["choices"]}
    assert by_nodes[6]["money"] == pytest.approx(8.64)
    assert by_nodes[38]["seconds"] / 60 == pytest.approx(14.4, abs=0.2)


def test_an_impossible_plan_fails_with_figures_and_still_shows_the_choices(capsys):
    assert main([*SEED, "--seconds", "uniform:1..60", "--deadline", "45s"]) == 1
    shown = capsys.readouterr()
    assert "error: a deadline of 45s cannot be met: the slowest of 150,000 items takes about 1m" in shown.err
    assert "MISSES" in shown.out


def test_a_sample_gives_times_and_memory(tmp_path, capsys):
    sample = tmp_path / "sample.jsonl"
    sample.write_text("".join(f'{{"seconds": {1 + at % 7}, "memoryBytes": 1000000000}}\n' for at in range(70)))
    words = ["plan", "--items", "1000", "--sample", str(sample), "--machines", str(EXAMPLE), "-o", "yaml"]
    assert main(words) == 0
    assumed = yaml.safe_load(capsys.readouterr().out)["assumed"]
    assert assumed[0].startswith("items: 1,000, as 70 measured ones; 4.0")
    assert "memory: 1.1Gi for each item, 20 % above the largest of the sample" in assumed


def test_prices_may_be_csv_and_names_can_be_printed(tmp_path, capsys):
    sheet = tmp_path / "prices.csv"
    sheet.write_text("name,region,cpu,memory,spot,on_demand\nsmall,,4,16Gi,,0.2\n")
    words = ["plan", "--items", "8", "--seconds", "4", "--machines", str(sheet), "--nodes", "2", "-o", "name"]
    assert main(words) == 0
    assert capsys.readouterr().out == "2xsmall/on-demand\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "comes from one of --seconds, --sample and --from-run"),
        (["--seconds", "4", "--from-run", "nodes=1"], "comes from one of"),
        (["--from-run", "nodes=1"], "invalid --from-run nodes=1: use nodes=N"),
        (["--from-run", "nodes=1,machine=x,time=1h"], "machine type 'x' of --from-run not found"),
        (["--from-run", "nodes=1,machine=n1-standard-96,time=1h,foo=1"], "unknown part 'foo' of --from-run"),
        (["--seconds", "4", "--limit", "mysql"], "invalid --limit mysql: use NAME=TOKENS"),
        (["--seconds", "4", "--limit", "mysql=10:200%"], "held 2 of an item's time"),
        (["--seconds", "4", "--quota", "cpus"], "invalid quota"),
        (["--seconds", "4", "--quota", "fish=1"], "'fish' has no quota"),
        (["--seconds", "4", "--deadline", "soon"], "--deadline: invalid duration 'soon'"),
        (["--seconds", "4", "--cpu", "much"], "--cpu: invalid quantity 'much'"),
        (["--seconds", "4", "--disk", "-1"], "invalid --disk -1: use 0 or more"),
        (["--seconds", "4", "--market", "on-demand"], "no offer matches"),
    ],
)
def test_wrong_usage_names_the_option(words, says, capsys):
    assert main([*SEED, *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("machines: []", "machines is empty"),
        ("fish: 1", "has no field 'fish'"),
        ("[", "neither YAML, JSON nor CSV"),
        ("machines: [{name: a, cpu: 4, memory: 1Gi, prices: [{spot: cheap}]}]", "prices[0].spot is 'cheap'"),
        ("machines: [{name: a, cpu: 4, prices: [{spot: 1}]}]", "does not say its memory"),
        ("machines: [{name: a, cpu: 4, memory: 1Gi, prices: [{}]}]", "neither a price `spot` nor `onDemand`"),
        ("machines: [{name: a, cpu: 4, memory: 1Gi, prices: [{spot: 1}, {spot: 2}]}]", "two prices for a/spot"),
        ("date: someday\nmachines: [{name: a, cpu: 4, memory: 1Gi, prices: [{spot: 1}]}]", "date is 'someday'"),
    ],
)
def test_an_invalid_price_file_is_named_with_the_field(text, says, tmp_path, capsys):
    sheet = tmp_path / "prices.yaml"
    sheet.write_text(text)
    assert main(["plan", "--items", "1", "--seconds", "1", "--machines", str(sheet)]) == 2
    err = capsys.readouterr().err
    assert str(sheet) in err
    assert says in err


def test_a_clusters_nodes_are_candidates_with_the_room_their_daemons_leave(moor, api, tmp_path):
    sheet = tmp_path / "prices.yaml"
    sheet.write_text(
        "machines:\n- {name: big, cpu: 999, memory: 1Gi, prices: [{onDemand: 2, region: west}]}\n"
        "- {name: gone, cpu: 4, memory: 1Gi, prices: [{onDemand: 1}]}\n"
    )
    kinds = {"node.kubernetes.io/instance-type": "big", "topology.kubernetes.io/region": "west"}
    for name, labels in (("n1", kinds), ("n2", {"node.kubernetes.io/instance-type": "odd"}), ("n3", {})):
        moor.api.put(NODES, a_node(name, labels=labels, cpu="16", memory="64Gi", capacity={}))
    owner, where = an_owner("DaemonSet", "agent"), {"namespace": "kube-system", "node": "n1", "phase": "Running"}
    moor.api.put(PODS, a_pod("agent-1", owner=owner, requests={"cpu": "500m"}, **where))
    words = ["--items", "100", "--seconds", "4", "--machines", str(sheet), "--from-cluster", "-o", "json"]
    done = moor("plan", *words)
    assert done.code == 0, done.err
    choices = json.loads(done.out)["choices"]
    kinds_of = {(choice["machine"], choice["region"], choice["podsPerNode"]) for choice in choices}
    assert kinds_of == {("big", "west", 15)}
    assert "left out: 1 of 3" in done.err
    assert "no price for odd" in done.err
