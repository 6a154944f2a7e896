#!/usr/bin/env python3
"""Measures messages that are pushed to many subscribers, against the floor (a loop of bare sends) and nchan.

    bench/pushing.py [--rounds N] [--seconds S] [--only NAME,NAME] [--parts PART,PART] [--subscribers N]

Parts: memory, fanout, steady, beside, connects, crowd. The server has one worker on the first CPU; publisher and subscribers are on
the last one. Servers take turns, and a ratio is taken within its round. CPU is the scheduler's account of the server's threads.
Writes bench/results/push.md and .json, unless only some of it is measured.
"""

import contextlib, http.client, json, os, resource, subprocess, sys, time
from pathlib import Path

from feeding import FLATOUT, Feed, Publisher, Subscribers, descriptors, settle
from measure import median, quartiles, told
from parts import main
from servers import CLIENT_CPU, SITE, Server, free_port, installed, pin, program
from smoke import failed, leave_out, sized

# Descriptors that a process here needs for itself.
RESERVED = 300

MESSAGE_BYTES = 200
CHANNEL = "/live/a"

# How long the last message may take to reach the last subscriber.
LAST_MESSAGE_S = 0.5

# The pause after which no more subscribers are expected, and the longest wait for them.
NO_MORE_S, COME_TIME_MAX_S = sized(8, smoke=1), 600

FANOUT_SUBSCRIBERS, FANOUT_PER_S = sized(10_000, smoke=100), 4
STEADY_SUBSCRIBERS, STEADY_PER_S = sized(16_000, smoke=100), sized(1, smoke=4)
CONNECTS_PER_S, ASKED_PER_S = sized(1_200, smoke=50), sized(200, smoke=50)

NCHAN_MODULE = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")


class Pushing(Server):
    """A server with channels: how a message is published there, and by which transports it is received."""

    def __init__(self, name, command, publish="/live/a", transports=("events", "websocket"), **more):
        super().__init__(name, command, "/hello.json", **more)
        self.publish, self.transports = publish, transports

    @contextlib.contextmanager
    def feed(self, per_s, message_bytes=MESSAGE_BYTES):
        """Publishes meanwhile."""
        publisher = Publisher(self.port)
        feed = Feed(lambda text: publisher.post(self.publish, text), per_s, message_bytes)
        try:
            yield feed
        finally:
            feed.end()


class Floor(Pushing):
    """It publishes by itself from its start on, when there are no subscribers yet."""

    @contextlib.contextmanager
    def feed(self, per_s, message_bytes=MESSAGE_BYTES):
        yield None


def flatout(name="flatout", more=()):
    command = [FLATOUT, "serve", str(SITE), "--push", "/live", "--push-token", "bench", "--listen", "127.0.0.1:{port}", "--workers", "1"]
    return Pushing(name, command + list(more))


def floor(per_s):
    return Floor("floor", [program("floor"), "127.0.0.1:{port}", "--push", str(per_s), str(MESSAGE_BYTES)], transports=("events",))


def nchan():
    if not NCHAN_MODULE.exists():
        leave_out("nchan, which is not installed")
        return []
    return installed(Pushing("nchan", ["nginx", "-c", "@conf/nchan.conf"], publish="/publish/a"))


def wanted(servers, options):
    names = options.only.split(",") if options.only else None
    return [server for server in servers if not names or server.name in names or server.name == "floor"]


def limit(count):
    """The number of subscribers that a process may hold here."""
    return min(count, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - RESERVED)


@contextlib.contextmanager
def subscribed(server, count, transport, number=0):
    """Connected subscribers, with their server idle."""
    there = Subscribers(f"http://127.0.0.1:{server.port}{CHANNEL}", count, CLIENT_CPU, transport, number)
    try:
        if not isinstance(server, Floor):
            settle(server, count)
        else:
            time.sleep(1 + count / 10_000)
        yield there
    finally:
        there.drop()


def memory(options):
    """Bytes of anonymous memory for each idle subscriber: between a few and many, in one process."""
    few, many = sized(256, smoke=16), sized(limit(15_000), smoke=200)
    runs = {}
    for server in wanted([flatout(), *nchan()], options):
        for transport in server.transports:
            with server, subscribed(server, few, transport):
                before = server.anonymous_bytes()
                with subscribed(server, many - few, transport, 1):
                    grown = server.anonymous_bytes() - before
            runs[f"{server.name}, {transport}"] = {"subscribers": many, "bytes_each": grown / (many - few)}
            print(f"  memory: {server.name}, {transport}: {grown / (many - few):.0f} bytes", file=sys.stderr)
    lines = ["### Memory of idle subscribers", "", "Anonymous memory of the server's process, less that with 256 subscribers.", "",
             "| server, transport | subscribers | bytes each |", "|---|---:|---:|"]
    lines += [f"| {name} | {run['subscribers']:,} | {run['bytes_each']:.0f} |" for name, run in runs.items()]
    return runs, lines


def deliver(server, count, transport, per_s, seconds):
    """A feed for some seconds: what a delivery costs the server, and how late messages come."""
    with subscribed(server, count, transport) as there:
        before, began = server.cpu_ns(), time.monotonic()
        with server.feed(per_s):
            time.sleep(seconds)
        if not isinstance(server, Floor):
            time.sleep(LAST_MESSAGE_S)
        used, took = server.cpu_ns() - before, time.monotonic() - began
        found = there.end()
    if not found["messages"]:
        raise RuntimeError(f"{server.name} has delivered nothing")
    # The floor sends continuously: a whole number of its periods has a fixed number of deliveries, whenever they start.
    delivered = count * per_s * seconds if isinstance(server, Floor) else found["messages"]
    return found | {"cpu_us": used / delivered / 1e3, "cpus": used / took / 1e9}


def rounds(options, count, per_s, title):
    servers = wanted([floor(per_s), flatout(), *nchan()], options)
    runs = {}
    for number in range(options.rounds):
        for server in servers[:: -1 if number % 2 else 1]:
            for transport in server.transports:
                name = server.name if isinstance(server, Floor) else f"{server.name}, {transport}"
                try:
                    with server:
                        runs.setdefault(name, []).append(deliver(server, count, transport, per_s, options.seconds))
                except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                    failed(name, error)
        print(f"  {title}: round {number + 1} of {options.rounds}", file=sys.stderr)
    return runs


def deliveries(options, title, count, per_s):
    count = limit(count)
    runs = rounds(options, count, per_s, title)
    base = runs.get("floor")
    lines = [f"### {title}: {count:,} subscribers, {per_s:g} messages of {MESSAGE_BYTES} bytes a second", "",
             "| server, transport | CPU µs per delivery | floor ÷ this (quartiles) | cores | p50 ms | p99 ms | p99 ÷ floor | missing or repeated | errors |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for name, its in sorted(runs.items(), key=lambda item: median(item[1], "cpu_us")):
        pairs = list(zip(its, base or its))
        share = told(quartiles([other["cpu_us"] / run["cpu_us"] for run, other in pairs]))
        late = quartiles([run["p99"] / max(other["p99"], 1e-3) for run, other in pairs])[0]
        lost = sum(run["missed"] + run["repeated"] + run["gaps_reported"] for run in its)
        lines.append(f"| {name} | {median(its, 'cpu_us'):.2f} | {share} | {median(its, 'cpus'):.3f} | {median(its, 'p50'):.1f} | {median(its, 'p99'):.1f} "
                     f"| {late:.2f} | {lost} | {sum(run['errors'] for run in its)} |")
    return runs, lines


def fanout(options):
    return deliveries(options, "Fan-out", FANOUT_SUBSCRIBERS, FANOUT_PER_S)


def steady(options):
    """The CPU cost of a steady feed beyond its sends, in cores."""
    runs, lines = deliveries(options, "A steady feed", STEADY_SUBSCRIBERS, STEADY_PER_S)
    for name, its in runs.items():
        if name != "floor" and "floor" in runs:
            more = quartiles([run["cpus"] - other["cpus"] for run, other in zip(its, runs["floor"])])
            lines += ["", f"{name}: {told(more, 3)} cores more than the floor."]
    return runs, lines


def ask(url, flags, seconds):
    """Requests at a rate by a client that goes before the subscribers: its own wait for the CPU is not the server's."""

    def first():
        pin(CLIENT_CPU)()
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError:
            pass

    command = [FLATOUT, "bench", url, "-t1", *flags, f"-d{seconds}s", "--json", "--source", "127.0.0.200", "--max-errors", "1000000000"]
    out = subprocess.run(command, capture_output=True, text=True, preexec_fn=first, timeout=seconds + 60)
    if not out.stdout.startswith("{"):
        raise RuntimeError(f"{url}: flatout bench said: {out.stderr[-500:]}")
    said = json.loads(out.stdout)
    cost = said.get("server_cpu_us_per_request") or {"user": 0, "kernel": 0}
    return {"cpu_us": sum(cost.values()), "errors": sum(said["errors"].values()),
            **{f"{name}_ms": said["latency_ns"][name] / 1e6 for name in ("p50", "p99", "p99_9", "max")}}


def beside(options):
    """The effect of deliveries on ordinary requests on the same worker."""
    count, runs = sized(limit(19_000), smoke=200), {}
    flags = [f"-R{ASKED_PER_S}", "-c8"]
    server = flatout()
    with server:
        url = server.url()
        runs["no subscribers"] = ask(url, flags, options.seconds)
        with subscribed(server, count, "events") as there:
            runs[f"{count:,} idle subscribers"] = ask(url, flags, options.seconds)
            with server.feed(FANOUT_PER_S):
                runs[f"{count:,} subscribers, {FANOUT_PER_S} messages/s"] = ask(url, flags, options.seconds)
            time.sleep(0.5)
            there.end()
    lines = ["### Ordinary requests beside deliveries", "", f"{ASKED_PER_S} requests/s for a small file, on the worker that delivers.", "",
             "| meanwhile | p50 ms | p99 ms | p99.9 ms | max ms |", "|---|---:|---:|---:|---:|"]
    lines += [f"| {name} | {run['p50_ms']:.2f} | {run['p99_ms']:.2f} | {run['p99_9_ms']:.2f} | {run['max_ms']:.2f} |" for name, run in runs.items()]
    return runs, lines


def connects(options):
    """The cost of new connections beside subscribers."""
    count, rounds = sized(limit(10_000), smoke=200), []
    flags = [f"-R{CONNECTS_PER_S}", "-c64", "--close"]
    server = flatout()
    with server:
        for number in range(options.rounds):
            settle(server, 0)
            alone = ask(server.url(), flags, options.seconds)
            with subscribed(server, count, "events"):
                rounds.append((alone, ask(server.url(), flags, options.seconds)))
            print(f"  connects: round {number + 1} of {options.rounds}", file=sys.stderr)
    alone, with_them = ([pair[at]["cpu_us"] for pair in rounds] for at in (0, 1))
    ratio = quartiles([after / max(before, 1e-3) for before, after in zip(alone, with_them)])
    lines = ["### New connections beside subscribers", "",
             f"{CONNECTS_PER_S:,} a second, each with one request. CPU µs of the server for each: {told(quartiles(alone))} without subscribers, "
             f"{told(quartiles(with_them))} beside {count:,}; ratio {told(ratio)}."]
    return {"alone": alone, "beside": with_them}, lines


class Crowd:
    """Processes on one port, each with a port of its own for publishing."""

    def __init__(self, count):
        self.port = free_port()
        shared = ["--share-port", "--listen", f"127.0.0.1:{self.port}"]
        self.servers = [flatout(f"flatout {number}", shared) for number in range(count)]

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def __enter__(self):
        self.started = []
        try:
            for server in self.servers:
                self.started.append(server.__enter__())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for server in self.started:
            server.__exit__()

    def sum(self, of):
        return sum(of(server) for server in self.started)


def crowd(options):
    """Subscribers over as many processes as the descriptor limit needs, on the client's side too."""
    per_process = limit(1 << 20)
    parts = -(-options.subscribers // int(per_process * 0.93))
    runs = {}
    with Crowd(parts) as servers:
        before = servers.sum(Server.anonymous_bytes)
        free = available_bytes()
        shares = [options.subscribers // parts + (number < options.subscribers % parts) for number in range(parts)]
        there = []
        try:
            for number, share in enumerate(shares):
                transport = "websocket" if number % 2 else "events"
                there.append(Subscribers(servers.url(CHANNEL), share, CLIENT_CPU, transport, number))
            held = wait_for_all(servers, options.subscribers)
            grown = servers.sum(Server.anonymous_bytes) - before
            used = free - available_bytes()
            flags = [f"-R{ASKED_PER_S}", "-c8"]
            idle = ask(servers.url(servers.servers[0].path), flags, options.seconds)
            cpu, began = servers.sum(Server.cpu_ns), time.monotonic()
            publishers = [Publisher(server.port) for server in servers.started]
            feeds = [Feed(lambda text, to=publisher: to.post(CHANNEL, text), STEADY_PER_S / 5, MESSAGE_BYTES) for publisher in publishers]
            asked = ask(servers.url(servers.servers[0].path), flags, options.seconds * 5)
            published = [feed.end() for feed in feeds]
            time.sleep(3)
            cpus = (servers.sum(Server.cpu_ns) - cpu) / (time.monotonic() - began) / 1e9
            found = [one.end() for one in there]
        finally:
            for one in there:
                one.drop()
    runs = {"held": held, "processes": parts, "bytes_each": grown / max(held, 1), "machine_bytes_each": used / max(held, 1), "published": published,
            "delivered": sum(one["messages"] for one in found), "missed": sum(one["missed"] + one["repeated"] for one in found),
            "errors": sum(one["errors"] for one in found), "p50": max(one["p50"] for one in found), "p99": max(one["p99"] for one in found),
            "cpus": cpus, "asked_idle": idle, "asked": asked}
    # Other processes on the host may have freed more memory than this used.
    machine_each = f"{runs['machine_bytes_each']:,.0f}" if used > 0 else "not measurable"
    lines = [f"### {options.subscribers:,} subscribers on one port", "", "Half by Server-Sent Events, half by WebSocket; a message to all every five seconds; server and clients on this machine.", "",
             "| held | processes | bytes each, server | bytes each, machine with clients | delivered | missing or repeated | errors | p50 ms | p99 ms | cores | requests meanwhile: p99 ms, max ms |",
             "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
             f"| {held:,} | {parts} | {runs['bytes_each']:.0f} | {machine_each} | {runs['delivered']:,} | {runs['missed']} | {runs['errors']} "
             f"| {runs['p50']:.0f} | {runs['p99']:.0f} | {cpus:.2f} | {asked['p99_ms']:.2f}, {asked['max_ms']:.2f} |", "",
             f"By the same arithmetic, 500,000 take {500_000 * runs['bytes_each'] / (1 << 20):,.0f} MiB of the servers' own memory"
             + (f", and {500_000 * used / max(held, 1) / (1 << 30):.1f} GiB of the machine with clients." if used > 0 else ".")]
    return runs, lines


def wait_for_all(servers, count):
    """Waits until all are connected, or no more connect: returns their number. A client first opens all of its connections, then subscribes."""
    before, deadline = None, time.monotonic() + COME_TIME_MAX_S
    while True:
        there = servers.sum(lambda server: presence(server.port))
        now = there, servers.sum(lambda server: descriptors(server.pids()))
        if there >= count or now == before or time.monotonic() > deadline:
            return there
        before = now
        time.sleep(NO_MORE_S)


def presence(port):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", f"{CHANNEL}?presence=1")
        return sum(json.loads(connection.getresponse().read()).values())


def available_bytes():
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


PARTS = {"memory": memory, "fanout": fanout, "steady": steady, "beside": beside, "connects": connects, "crowd": crowd}


if __name__ == "__main__":
    main(
        "push", "Messages pushed to many subscribers", PARTS, __doc__, rounds=10, seconds=5,
        flags={"--subscribers": dict(type=int, default=sized(250_000, smoke=500), help="of the part crowd")},
    )
