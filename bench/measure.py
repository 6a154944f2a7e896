"""Runs of clients against servers, round by round, and their evaluation."""

import contextlib, json, re, resource, statistics, subprocess, sys, time

from servers import BENCH, CLIENT_CPU, pin, program
from smoke import IS_SMOKE, failed

FLATOUT = program("flatout")
CLIENT_LIMIT_SHARE = 0.95
WARM_UP_S = 1


def wrk(url, connections, seconds, script=None):
    """One run; a script is the name of one in `conf`, or a list of it and its arguments."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    name, *arguments = script if isinstance(script, list) else [script]
    command += ["-s", str(BENCH / "conf" / name)] if name else []
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    command += [url, "--", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, preexec_fn=pin(CLIENT_CPU), timeout=seconds + 30)
    out = ran.stdout
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.time() - began
    if "Requests/sec" not in out:
        raise RuntimeError(f"wrk said: {out}{ran.stderr[-300:]}")
    errors = re.search(r"Socket errors.*|Non-2xx.*", out)
    if errors and not re.fullmatch(r"Socket errors: connect 0, read 0, write 0, timeout \d+", errors[0]):
        raise RuntimeError(f"{url}: {errors[0]}")
    unit = {"us": 1, "ms": 1e3, "s": 1e6, "m": 6e7}
    latency = lambda p: (lambda m: float(m[1]) * unit[m[2]])(re.search(rf"^\s+{p}%\s+([\d.]+)(\w+)", out, re.M))
    return {
        "requests": int(re.search(r"(\d+) requests in", out)[1]),
        "requests_per_s": float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1]),
        "p50_us": latency(50),
        "p99_us": latency(99),
        "client_cpu_share": (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / took,
    }


def flatout_bench(url, connections, seconds, rate=None):
    """One run of our own client; with a rate in an open loop, in which latency counts from when a request was due."""
    command = [FLATOUT, "bench", "-t1", f"-c{connections}", f"-d{seconds}s", "--json"] + (["-R", f"{rate:.0f}"] if rate else [])
    out = subprocess.run(command + [url], capture_output=True, text=True, preexec_fn=pin(CLIENT_CPU), timeout=seconds + 30)
    if out.returncode != 0:
        raise RuntimeError(f"{url}: flatout bench said: {out.stderr[-500:]}")
    said = json.loads(out.stdout)
    run = {key: said[key] for key in ("requests", "requests_per_s")}
    return run | {f"{name}_us": said["latency_ns"][name] / 1e3 for name in ("p50", "p99", "p99_9", "max")}


def with_cpu(server, act):
    """A run, and what it cost the server a request: the sum is exact, the ticks are sampled."""
    ns, ticks = server.cpu_ns(), server.cpu_ticks()
    run = act()
    run["cpu_us"] = (server.cpu_ns() - ns) / run["requests"] / 1e3
    run["user_ticks"], run["kernel_ticks"] = (now - then for now, then in zip(server.cpu_ticks(), ticks))
    return run


def measure(server, connections, seconds, script=None):
    return with_cpu(server, lambda: wrk(server.url(), connections, seconds, script))


def warm_up(server, connections, script=None):
    if not IS_SMOKE:
        wrk(server.url(), connections, WARM_UP_S, script)


def warmed_up(servers, connections, script=None):
    """The servers that have completed a load."""
    if IS_SMOKE:
        return servers
    warm = []
    for server in servers:
        try:
            warm_up(server, connections, script)
            warm.append(server)
        except RuntimeError as error:
            failed(server.name, error)
    return warm


def turns(servers, options, act):
    """Runs of running servers by name, round by round, every other round in reverse order. Servers that fail are left out."""
    runs = {server.name: [] for server in servers}
    for number in range(options.rounds):
        for server in servers[:: -1 if number % 2 else 1]:
            if server.name not in runs:
                continue
            try:
                runs[server.name].append(act(server))
            except RuntimeError as error:
                failed(server.name, error)
                runs.pop(server.name)
        print(f"  round {number + 1} of {options.rounds}", file=sys.stderr)
    return runs


@contextlib.contextmanager
def running(servers):
    """The servers that could be started, running."""
    with contextlib.ExitStack() as stack:
        started = []
        for server in servers:
            try:
                started.append(stack.enter_context(server))
            except (RuntimeError, OSError) as error:
                failed(server.name, error)
        yield started


def rounds(servers, connections, options, script=None):
    """Servers run through all rounds, each warmed up once; those not being measured sleep."""
    with running(servers) as started:
        return measured(started, connections, options, script)


def measured(started, connections, options, script=None):
    started = warmed_up(started, connections, script)
    return turns(started, options, lambda server: measure(server, connections, options.seconds, script))


def spread(values):
    return statistics.median(values), min(values), max(values)


def quartiles(values):
    """Median, lower and upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return middle, low, high


def ratios(runs, name, base, key):
    """Ratios of a server to another within each round: median, lower and upper quartile."""
    return quartiles([run[key] / other[key] for run, other in zip(runs[name], runs[base])])


def told(found, digits=2):
    """A median with its quartiles."""
    return "{:,.{d}f} ({:,.{d}f}–{:,.{d}f})".format(*found, d=digits)


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def split(runs):
    """User and kernel µs of the median request: by the ticks of all runs, so that many short ones say as much as a long one."""
    user, kernel = (sum(run[key] for run in runs) for key in ("user_ticks", "kernel_ticks"))
    share = user / max(user + kernel, 1)
    return share * median(runs, "cpu_us"), (1 - share) * median(runs, "cpu_us")


def table(runs, *bases):
    """Markdown rows, cheapest first; ratios are to each of `bases` within each round."""
    bases = [base for base in bases if base in runs]
    heads = [f"CPU ÷ {base} (quartiles)" for base in bases]
    lines = [
        "| " + " | ".join(["server", "user µs", "kernel µs", "CPU µs", *heads, "requests/s", "p50 µs", "p99 µs", "client"]) + " |",
        "|---|" + "---:|" * (len(bases) + 7),
    ]
    for name, its in sorted(runs.items(), key=lambda item: median(item[1], "cpu_us")):
        user, kernel = split(its)
        share = median(its, "client_cpu_share")
        limit = f"{share:.0%}" + (" (limit)" if share > CLIENT_LIMIT_SHARE else "")
        cells = [name, f"{user:.2f}", f"{kernel:.2f}", f"{median(its, 'cpu_us'):.3f}"]
        cells += [told(ratios(runs, name, base, "cpu_us"), 3) for base in bases]
        cells += [f"{median(its, key):,.0f}" for key in ("requests_per_s", "p50_us", "p99_us")] + [limit]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
