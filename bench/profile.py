#!/usr/bin/env python3
"""Measures what `flatout profile` costs the server that it samples.

    bench/profile.py [--rounds N] [--seconds S] [--rates HZ,HZ]

The server is examples/hello-json with one worker on the first CPU; the client, wrk, is on the last. One server process is
measured in pairs, once with and once without a sampling meanwhile, which of them comes first alternates, and what is told
is the median of the ratios within pairs and their spread. A rate far above the default says what the default costs where
that is lost in the noise. Writes bench/results/profile.md and .json.
"""

import argparse, json, os, signal, statistics, subprocess, sys, time
from pathlib import Path

from measure import measure, spread, warm_up
import children
import smoke
from servers import RESULTS, flatout_json, machine, program
from smoke import IS_SMOKE

FLATOUT = program("flatout")
CONNECTIONS = 64

# The default sampling rate of `flatout profile`, and ten times that.
RATES = (499, 4990)

# Extra time for a pair of runs, and the number of attempts.
SLACK_S, ATTEMPTS_MAX = 8, 4

# How long a sampling may take to start.
BEGIN_S = 10


class Sampling:
    """`flatout profile` on a server for as long as the block lasts."""

    def __init__(self, pid, rate):
        self.command = [FLATOUT, "profile", "--pid", str(pid), "--frequency", str(rate), "--duration", "600s"]

    def __enter__(self):
        self.process = children.start(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.time() + BEGIN_S
        while not self.has_begun():
            if self.process.poll() is not None or time.time() > deadline:
                self.process.kill()
                raise RuntimeError(f"no sampling: {self.process.communicate()[1]}")
            time.sleep(0.02)
        return self

    def has_begun(self):
        folder = Path(f"/proc/{self.process.pid}/fd")
        try:
            return any("perf_event" in os.readlink(entry) for entry in folder.iterdir())
        except OSError:
            return False

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        out, said = self.process.communicate(timeout=60)
        if self.process.returncode != 0:
            raise RuntimeError(f"the sampling failed: {said}")
        self.table = out


def pair(server, rate, seconds, sampled_first):
    """A run without and one with sampling."""
    found = {}
    for is_sampled in (sampled_first, not sampled_first):
        warm_up(server, CONNECTIONS)
        if is_sampled:
            with Sampling(server.process.pid, rate):
                found["with"] = measure(server, CONNECTIONS, seconds)
        else:
            found["without"] = measure(server, CONNECTIONS, seconds)
    return found


def whole_pair(server, rate, seconds, sampled_first):
    """A pair in which nothing stood still: a run that took longer than it should is done again, with its other half."""
    for _ in range(ATTEMPTS_MAX):
        try:
            began = time.time()
            found = pair(server, rate, seconds, sampled_first)
            if time.time() - began < 2 * (seconds + 1) + SLACK_S:
                return found
        except subprocess.TimeoutExpired:
            pass
        print("  a run stood still; the pair is measured again", file=sys.stderr)
    raise RuntimeError(f"no pair of {ATTEMPTS_MAX} went through: the machine is not quiet")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rates", default=",".join(map(str, RATES)))
    parser.add_argument("--smoke", action="store_true", help=smoke.HELP)
    options = parser.parse_args()
    if IS_SMOKE:
        options.rounds = options.seconds = 1
    rates = [int(rate) for rate in options.rates.split(",")]
    runs = {rate: [] for rate in rates}
    with flatout_json() as server:
        for number in range(options.rounds):
            for rate in rates:
                runs[rate].append(whole_pair(server, rate, options.seconds, number % 2 == 1))
            print(f"  round {number + 1} of {options.rounds}", file=sys.stderr)
    lines = [
        "| samples a second | CPU µs per request without | with | CPU with ÷ without (min–max) | requests/s with ÷ without (min–max) |",
        "|---:|---:|---:|---:|---:|",
    ]
    for rate, pairs in runs.items():
        median = lambda arm: statistics.median(each[arm]["cpu_us"] for each in pairs)
        ratio = lambda key: "{:.3f} ({:.3f}–{:.3f})".format(*spread([each["with"][key] / each["without"][key] for each in pairs]))
        lines.append(f"| {rate} | {median('without'):.2f} | {median('with'):.2f} | {ratio('cpu_us')} | {ratio('requests_per_s')} |")
    command = f"./x bench profile --rounds {options.rounds} --seconds {options.seconds}"
    text = "\n".join(["## What sampling costs the server", "", f"`{command}` · {machine()}", "", *lines, ""])
    print(text)
    if IS_SMOKE:
        return
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "profile.md").write_text(text)
    (RESULTS / "profile.json").write_text(json.dumps({"machine": machine(), "command": command, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    children.end_on_signals()
    main()
