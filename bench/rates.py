"""The cases with an open loop: latency at shares of the highest rate, beside an older build; and what guests cost."""

import statistics
from pathlib import Path

from measure import flatout_bench, measured, median, quartiles, ratios, running, table, told, turns, warm_up, with_cpu
from smoke import sized
from servers import flatout_json, guest_echo, guest_servers, json_example

CONNECTIONS = 64
SHARES = sized((0.2, 0.5, 0.8), smoke=(0.5,))


def highest_rate(started, seconds, tries=3):
    """The highest rate of the slowest of them: a median of interleaved runs."""
    reached = {server.name: [] for server in started}
    for _ in range(tries):
        for server in started:
            reached[server.name].append(flatout_bench(server.url(), CONNECTIONS, seconds)["requests_per_s"])
    return min(map(statistics.median, reached.values()))


def at_rate(started, rate, options):
    return turns(started, options, lambda server: with_cpu(server, lambda: flatout_bench(server.url(), CONNECTIONS, options.seconds, rate)))


def rows(label, runs, base):
    """Rows of one load; ratios are to `base`, where it is measured."""
    lines = []
    for name, its in runs.items():
        cells = [label, name]
        for key, digits in (("p50_us", 0), ("p99_us", 0), ("cpu_us", 3)):
            cells.append(told(quartiles([run[key] for run in its]), digits))
            cells.append(told(ratios(runs, name, base, key)) if base in runs else "–")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def heads(base):
    columns = [f"{column} | ÷ {base}" for column in ("p50 µs (quartiles)", "p99 µs", "CPU µs")]
    return ["| load | server | " + " | ".join(columns) + " |", "|---|---|" + "---:|" * 6]


def case_load(options):
    """Both see the same load: shares of what the slower reaches."""
    servers = [flatout_json()] + ([json_example(Path(options.before).resolve(), "before")] if options.before else [])
    with running(servers) as started:
        for server in started:
            warm_up(server, CONNECTIONS)
        highest = highest_rate(started, options.seconds, sized(3, smoke=1))
        runs, lines = {"highest_rate_per_s": highest}, [f"100 % is {highest:,.0f} requests/s, over {CONNECTIONS} connections.", "", *heads("before")]
        for share in SHARES:
            label = f"{share:.0%}"
            runs[label] = at_rate(started, highest * share, options)
            lines += rows(label, runs[label], "before")
    return runs, lines


def case_guest(options):
    """A round trip to an upstream for each request, through guests of the lane and through tokio."""
    with guest_echo() as upstream, running(guest_servers(upstream)) as started:
        full = measured(started, CONNECTIONS, options)
        # The client and the upstream share a CPU, so this is below what a server could do.
        half = min(median(its, "requests_per_s") for its in full.values()) / 2
        calm = at_rate(started, half, options)
    lines = table(full, "tokio") + ["", f"In an open loop at {half:,.0f} requests/s:", "", *heads("tokio"), *rows("50%", calm, "tokio")]
    return {"full": full, "half": calm}, lines
