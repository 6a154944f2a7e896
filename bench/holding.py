"""The cases of many idle connections: the memory of each, and the performance of the busy ones meanwhile."""

import json, resource, socket, subprocess, sys, time

from feeding import descriptors
from measure import FLATOUT, measure, warm_up, wrk
import children
from servers import CLIENT_CPU, SITE, Server, flatout_json, installed, nginx, only, peers, pin, program
from smoke import sized


class Holders:
    """Keep-alive connections, each after one request, held by processes of their own: idle, or without having waited for
    their responses."""

    # A source address has some 28 000 ports, and finding a free one is slow when most are in use.
    PER_PROCESS = 10_000

    def __init__(self, server_path, port, count, waits=True):
        self.processes = []
        for number, start in enumerate(range(0, count, self.PER_PROCESS)):
            part = min(self.PER_PROCESS, count - start)
            command = [sys.executable, __file__, f"{part},{port},127.0.0.{2 + number},{server_path},{int(waits)}"]
            pipe = subprocess.PIPE
            self.processes.append(children.start(command, pin(CLIENT_CPU), stdout=pipe, stdin=pipe, text=True))
        self.held = sum(int(process.stdout.readline() or 0) for process in self.processes)

    def close(self):
        for process in self.processes:
            process.stdin.close()
            process.wait()


def hold(argument):
    """In a separate process: opens connections, reports their number, and waits for stdin to close."""
    count, port, source, path, waits = argument.split(",")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    request = f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
    held = []
    for _ in range(int(count)):
        s = socket.socket()
        s.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        s.bind((source, 0))
        s.connect(("127.0.0.1", int(port)))
        s.sendall(request)
        if waits == "1" and not s.recv(4096).startswith(b"HTTP/1.1 200"):
            break
        held.append(s)
    print(len(held), flush=True)
    sys.stdin.read()


# By then every held connection has sent its request: `flatout bench --hold` spreads them over ten seconds.
HOLD_S, SETTLED_S = sized((13, 11.5), smoke=(2, 1))


def idle_bytes(server, url, counts, flags):
    """Anonymous memory of the server per held connection: the difference between few and many, in one process."""
    few, many = (held_bytes(server, url, count, flags) for count in counts)
    return (many - few) / (counts[1] - counts[0])


def held_bytes(server, url, count, flags):
    """The server's anonymous memory while this many connections are held."""
    command = [FLATOUT, "bench", "--hold", str(count), f"-d{HOLD_S}s", "--json", *flags, url]
    client = children.start(command, pin(CLIENT_CPU), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Wait until all are connected: handshakes take time.
    began, deadline = None, time.monotonic() + 60
    while client.poll() is None and time.monotonic() < deadline:
        if began is None and descriptors(server.pids()) >= count:
            began = time.monotonic()
        if began is not None and time.monotonic() > began + SETTLED_S:
            break
        time.sleep(0.1)
    bytes_held = server.anonymous_bytes()
    out, errors = client.communicate(timeout=60)
    if client.returncode != 0 or began is None or json.loads(out)["connections_held"] < count:
        raise RuntimeError(f"it does not hold {count} connections: {errors[-300:]}")
    return bytes_held


def case_idle(options):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = sized(min(19_000, limit - 1_000), smoke=500)
    runs = {}
    hyper = [server for server in peers() if server.name == "hyper"]
    for server in only([flatout_json(), *installed(nginx("/json")), *hyper], options):
        with server:
            wrk(server.url(), 8, 1)
            before = server.anonymous_bytes()
            holders = Holders(server.path, server.port, count)
            time.sleep(1)
            grown = server.anonymous_bytes() - before
            busy = wrk(server.url(), 8, 2)
            runs[server.name] = {"held": holders.held, "bytes_each": grown / max(holders.held, 1), "p99_us_meanwhile": busy["p99_us"]}
            holders.close()
        print(f"  {server.name}: {runs[server.name]}", file=sys.stderr)
    lines = ["| server | connections held | anonymous bytes each | p99 µs of 8 busy ones meanwhile |", "|---|---:|---:|---:|"]
    lines += [f"| {n} | {r['held']:,} | {r['bytes_each']:,.0f} | {r['p99_us_meanwhile']:.0f} |" for n, r in runs.items()]
    return runs, lines


def case_crowd(options):
    """Two hundred thousand over as many processes, sharing the port, as the descriptor limit needs."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = sized(200_000, smoke=500)
    per_server = int(min(limit, wanted) * 0.85)
    count = -(-wanted // per_server) + 1
    command = [program("flatout"), "serve", str(SITE), "--listen", "127.0.0.1:{port}", "--workers", "1", "--share-port", "--idle-time", "10m"]
    servers = [Server("flatout serve", command, "/hello.json") for _ in range(count)]
    for server in servers:
        server.port = servers[0].port
    started = []
    try:
        started = [server.__enter__() for server in servers]
        time.sleep(0.5)
        before = sum(server.anonymous_bytes() for server in started)
        holders = Holders("/hello.json", servers[0].port, wanted)
        time.sleep(2)
        grown = sum(server.anonymous_bytes() for server in started) - before
        warm_up(started[0], 8)
        busy = measure(started[0], 8, 3)
        resident = sum(server.anonymous_bytes() for server in started)
        runs = {"held": holders.held, "processes": count, "bytes_each": grown / max(holders.held, 1), "anonymous_mib": resident / (1 << 20),
                "requests_per_s_meanwhile": busy["requests_per_s"], "p99_us_meanwhile": busy["p99_us"]}
        holders.close()
    finally:
        for server in started:
            server.__exit__()
    lines = ["| connections held | processes | anonymous bytes each | anonymous MiB in all | requests/s of 8 busy ones meanwhile | their p99 µs |", "|---:|---:|---:|---:|---:|---:|",
             f"| {runs['held']:,} | {count} | {runs['bytes_each']:.0f} | {runs['anonymous_mib']:.0f} | {runs['requests_per_s_meanwhile']:,.0f} | {runs['p99_us_meanwhile']:.0f} |"]
    return runs, lines


if __name__ == "__main__":
    hold(sys.argv[1])
