"""climb.py FILE.json COMMAND: the table of a climb's result, for bench/results."""

import json, sys


def share(gain, low, high):
    return f"{100 * gain:+.1f} % ({100 * low:+.1f} to {100 * high:+.1f})"


def gains(effects):
    for name in ("throughput", "cpu", "p99"):
        effect = effects and effects.get(name)
        yield share(effect["gain"], effect["low"], effect["high"]) if effect else "–"


def left_out(rung):
    interval = rung["leave_one_out_interval"]
    return share(rung["leave_one_out"], *interval) if interval else "–"


def rows(climb):
    for rung in climb["rungs"]:
        yield [rung["name"], rung["status"], *gains(rung["effects"]), str(rung["pairs"]), left_out(rung), rung["reason"].replace("|", "\\|")]
    if climb["total_effects"]:
        yield ["everything kept", "", *gains(climb["total_effects"]), "", "", ""]


def side(name, figures):
    cpu = figures["cpu_us_per_request"]
    cpu = f", {cpu:.2f} µs CPU per request" if cpu else ""
    p99 = f", p99 {figures['p99_ns'] / 1e6:.2f} ms" if figures["p99_ns"] else ""
    share = figures["generator_share"]
    client = f", client busy {100 * share:.0f} %" if share else ""
    return f"- {name}: {figures['requests_per_s']:,.0f} requests/s{p99}{cpu}{client}; {figures['runs']} runs"


def table(climb, command):
    machine = climb["machine"]
    floor = "unknown" if climb["noise_floor"] is None else f"{100 * climb['noise_floor']:.1f} %"
    if climb.get("noise_floor_of_servers") is not None:
        floor += f", of changes of the server {100 * climb['noise_floor_of_servers']:.1f} %"
    yield f"`{command}`"
    yield ""
    yield f"Measured on: {machine['processor']}, {machine['cpus']} CPUs, Linux {machine['kernel']}; climbed for {climb['objective']}, noise floor {floor}."
    yield ""
    for name in ("before", "after"):
        if climb[name]:
            yield side(name, climb[name])
    yield ""
    yield "Gains with their 95 % intervals; of CPU and p99 they are before ÷ after − 1."
    yield ""
    headings = ["rung", "status", "requests/s", "CPU per request", "p99", "pairs", "with everything kept", "why"]
    yield "| " + " | ".join(headings) + " |"
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    for row in rows(climb):
        yield "| " + " | ".join(row) + " |"


with open(sys.argv[1]) as file:
    print("\n".join(table(json.load(file), sys.argv[2])))
