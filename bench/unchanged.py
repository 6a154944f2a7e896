"""Climbs of twenty changes that change nothing, with real servers: a climb that keeps one of them errs.

    unchanged.py COMMAND RESULTS [--climbs N] [--budget TIME] [--duration TIME] [--smoke]

Each climb has a random seed of its own. Writes RESULTS/climb-nothing.md and climb-nothing.json.
"""

import argparse, json, os, platform, subprocess, sys
from pathlib import Path

from smoke import HELP, sized

PLAN = "climbs/nothing.kdl"


def climbed(command, number, options):
    """The result of one climb."""
    path = Path("target/climbs") / f"nothing-{number}.json"
    flags = ["--seed", str(number), "--budget", options.budget, "--duration", options.duration, "--profile", "0s", "--json", str(path)]
    environment = {**os.environ, "FLATOUT_BINARIES": str(Path(command).resolve().parent)}
    done = subprocess.run([command, "climb", "--plan", PLAN, *flags], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"climb {number} ended with {done.returncode}:\n{done.stderr[-1000:]}")
    return json.loads(path.read_text())


def counted(number, climb):
    """What it has found, as shares."""
    measured = [rung for rung in climb["rungs"] if rung["low"] is not None]
    count = lambda status: sum(rung["status"] == status for rung in climb["rungs"])
    half = [(rung["high"] - rung["low"]) / 2 for rung in measured]
    return {
        "seed": number,
        "noise_floor": climb["noise_floor"],
        "measured": len(measured),
        "kept": count("kept"),
        "worse": count("worse"),
        "contain_zero": sum(rung["low"] <= 0 <= rung["high"] for rung in measured),
        "median_half_width": sorted(half)[len(half) // 2] if half else None,
        "widest_half_width": max(half, default=None),
        "cpu_of": climb["cpu_of"],
        "load": climb["load"],
    }


def percent(share):
    return "–" if share is None else f"{100 * share:.1f} %"


def table(climbs, rungs, options, machine):
    budget, duration = options.budget, options.duration
    yield "`./x bench climb nothing`"
    yield ""
    yield f"Measured on: {machine['processor']}, {machine['cpus']} CPUs, Linux {machine['kernel']}. Each climb has {rungs} changes that change nothing, and a budget of {budget}, in runs of {duration}."
    yield f"Load: {climbs[0]['load']}. CPU time: of {climbs[0]['cpu_of']}."
    yield ""
    yield "| climb | noise floor | measured | kept | worse | intervals with 0 | median interval | widest interval |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for climb in climbs:
        cells = [climb["seed"], percent(climb["noise_floor"]), climb["measured"], climb["kept"], climb["worse"], climb["contain_zero"]]
        cells += [f"±{percent(climb[key])}" for key in ("median_half_width", "widest_half_width")]
        yield "| " + " | ".join(map(str, cells)) + " |"
    total = lambda key: sum(climb[key] for climb in climbs)
    widest = max((climb["widest_half_width"] or 0 for climb in climbs), default=0)
    yield f"| all | | {total('measured')} of {rungs * len(climbs)} | {total('kept')} | {total('worse')} | {total('contain_zero')} | | ±{percent(widest)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("results", type=Path)
    parser.add_argument("--climbs", type=int, default=sized(10, smoke=1))
    parser.add_argument("--budget", default=sized("205s", smoke="20s"), help="of each climb")
    # Shorter than usual: each start of a server is one value, and all twenty are to be measured in the budget.
    parser.add_argument("--duration", default="250ms", help="of each run")
    parser.add_argument("--smoke", action="store_true", help=HELP)
    options = parser.parse_args()
    Path("target/climbs").mkdir(parents=True, exist_ok=True)
    options.results.mkdir(parents=True, exist_ok=True)
    climbs, machine, rungs = [], {"processor": platform.processor(), "cpus": 0, "kernel": platform.release()}, 0
    for number in range(1, options.climbs + 1):
        climb = climbed(options.command, number, options)
        machine, rungs = climb["machine"], len(climb["rungs"])
        climbs.append(counted(number, climb))
        row = climbs[-1]
        print(f"  climb {number}: {row['measured']} measured, {row['kept']} kept, {row['worse']} worse, widest ±{percent(row['widest_half_width'])}", file=sys.stderr)
    (options.results / "climb-nothing.json").write_text(json.dumps({"budget": options.budget, "duration": options.duration, "machine": machine, "climbs": climbs}, indent=1) + "\n")
    (options.results / "climb-nothing.md").write_text("\n".join(table(climbs, rungs, options, machine)) + "\n")


if __name__ == "__main__":
    main()
