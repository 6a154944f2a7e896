"""A benchmark with several parts: its flags, and where it writes results."""

import argparse, json, resource, shutil, sys

import children
import smoke
from servers import RESULTS, SITE, machine, make_site


def main(name, title, parts, doc, rounds, seconds, flags={}):
    """Runs the requested parts. If those are all parts, with all servers, writes `bench/results/NAME.md` and `.json`. `flags` are further ones of `argparse`."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=int, default=seconds)
    parser.add_argument("--only", default="", help="names of servers")
    parser.add_argument("--parts", default="", help=", ".join(parts))
    parser.add_argument("--smoke", action="store_true", help=smoke.HELP)
    for flag, form in flags.items():
        parser.add_argument(flag, **form)
    options = parser.parse_args()
    children.end_on_signals()
    if smoke.IS_SMOKE:
        options.rounds = options.seconds = 1
    wanted = options.parts.split(",") if options.parts else list(parts)
    unknown = [part for part in wanted if part not in parts]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(parts)}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    RESULTS.mkdir(exist_ok=True)
    make_site()
    command = f"./x bench {name} --rounds {options.rounds} --seconds {options.seconds}"
    runs, lines = {}, [f"## {title}", "", f"`{command}` · {machine()}"]
    try:
        for part in wanted:
            print(f"{part} …", file=sys.stderr)
            runs[part], found = parts[part](options)
            print("\n".join(["", *found]), flush=True)
            lines += ["", *found]
    finally:
        shutil.rmtree(SITE, ignore_errors=True)
    if not (options.only or options.parts or smoke.IS_SMOKE):
        (RESULTS / f"{name}.md").write_text("\n".join([*lines, ""]))
        (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine(), "command": command, "runs": runs}, indent=1) + "\n")


def table(heads, rows):
    return ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1), *("| " + " | ".join(row) + " |" for row in rows)]


def beside(runs, base, key, name):
    """Ratio of a server's figure to another's in each round; none if the other is not measured."""
    if base not in runs:
        return None
    return [one[key] / other[key] for one, other in zip(runs[name], runs[base]) if other[key] > 0]
