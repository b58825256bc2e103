"""Packing on the openb trace (Weng et al., USENIX ATC 2023) against bars.

    python benchmarks/packing_openb.py [FOLDER] [--quick] [--first-seed=N] [--handler]

FOLDER: default $MOORAGE_OPENB. `--handler`: whole-GPU lists through the extender's own HTTP handler.

FOLDER holds `openb_node_list_gpu_node.csv` and any `openb_pod_list_*.csv`, from
https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023. Five seeds, policy `fragmentation` for
all lists, as `moor simulate` plays it: the extender's own scoreboard, integer points, random ties, node sampling,
the scheduler's resource scores on. Bars, on whole-GPU variants (what extended resources can express):

- allocation at 100 % arrival at least 99.5 %;
- on the default list at most 2 refused pods of eight GPUs, on average of the seeds;
- churn at load 0.95: refused demand at most 0.1 %.

The upper bound of a list's allocation, and the demand that no empty node could take, stand beside the figures: a
bar beyond them cannot be met, and is counted as missed all the same.

Lists as they are, with shares of GPUs, are printed beside FGD's 95.10 % (default list, its own ties), not judged.
Exit code 1 when a bar is missed. `--quick`: one seed. Seeds are N (default 2001, which tuning never saw) and on.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from moorage.cli.simulate import load, run
from moorage.extender.simulation import Scheduler, bound
from moorage_kube.errors import UsageError

POLICY = "fragmentation"
ALLOCATED_BAR = 0.995
LARGE_BAR = 2.0
CHURN_BAR = 0.001
LOAD = 0.95
FGD = 95.10  # per cent; five seeds, lexicographic ties


def main(argv: list[str]) -> int:
    words = [word for word in argv if not word.startswith("--")]
    folder = Path(words[0] if words else os.environ.get("MOORAGE_OPENB", ""))
    nodes_file = folder / "openb_node_list_gpu_node.csv"
    if not nodes_file.exists():
        print(f"no {nodes_file}: give the trace's folder as an argument or in $MOORAGE_OPENB", file=sys.stderr)
        return 2
    seeds = 1 if "--quick" in argv else 5
    firsts = [word.removeprefix("--first-seed=") for word in argv if word.startswith("--first-seed=")]
    first = int(firsts[-1]) if firsts else 2001
    missed = []
    for whole in (True, False):
        print("whole GPUs only" if whole else f"as they are (FGD: {FGD:.2f} % on default)")
        for path in sorted(folder.glob("openb_pod_list_*.csv")):
            name = path.stem.removeprefix("openb_pod_list_")
            try:
                nodes, pods = load(nodes_file, path, whole=whole)
            except UsageError as error:
                print(f"  {name:12} left out: {error.message}")
                continue
            started = time.perf_counter()
            (found,) = run(
                nodes,
                pods,
                policies=(POLICY,),
                seeds=seeds,
                load_=LOAD,
                scheduler=Scheduler(default_scores=True),
                first_seed=first,
                handler=whole and "--handler" in argv,
            )
            allocated = sum(one.allocated for one in found.fills) / seeds
            large = sum(one.large_refused for one in found.fills) / seeds
            churned = sum(one.refused for one in found.churns) / seeds
            unavoidable = sum(one.bound for one in found.churns) / seeds
            most = bound(nodes, pods)
            problems = []
            if whole:
                if allocated < ALLOCATED_BAR:
                    problems.append("allocation")
                if name == "default" and large > LARGE_BAR:
                    problems.append("8-GPU pods")
                if churned > CHURN_BAR:
                    problems.append("churn")
            missed += [f"{name}: {problem}" for problem in problems]
            lowest = min(one.allocated for one in found.fills)
            seconds = time.perf_counter() - started
            print(
                f"  {name:12} allocated {100 * allocated:6.2f} % (lowest {100 * lowest:.2f},"
                f" bound {100 * most:.2f})  8-GPU refused {large:4.1f} of {found.fills[0].large}"
                f"  churn refused {100 * churned:.3f} % (unavoidable {100 * unavoidable:.3f})"
                f"  {seconds:.0f} s  {'MISSED ' + ', '.join(problems) if problems else ''}",
                flush=True,
            )
    print("bars missed: " + "; ".join(missed) if missed else "all bars kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
