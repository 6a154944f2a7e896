"""What a proxy does for an application that has few workers and many clients: responses to slow readers, and tunnels that rarely carry a
message."""

import asyncio, json, os, resource, signal, socket, subprocess, sys, time, urllib.request
from pathlib import Path

from measure import median, quartiles, told
from proxying import GUEST, Origin, Proxy, proxies
import children
from servers import CLIENT_CPU, Server, only, pin
from smoke import failed, sized

# Slow readers: each reads so many bytes of its body in each tick, 100 KiB a second.
READERS = sized(1_000, smoke=20)
BODY_BYTES = 1 << 20
TICK_S = 0.1
READ_BYTES = sized(10 << 10, smoke=200 << 10)

# What a client far away has announced to be able to take.
RECEIVE_BUFFER_BYTES = 16 << 10

# Until the last reader has all of its body.
READERS_TIME_MAX_S = 120

# Tunnels: each carries a message there and back every so many seconds.
TUNNELS = sized(100_000, smoke=200)
EVERY_S = sized(60, smoke=1)
OPENING_TIME_S = 120

# How long after an upgrade tunnels are watched.
UPGRADED_S = sized(EVERY_S, smoke=2)


class Application(Server):
    """Sends a body as fast as it is taken, and knows how long it was held by each."""

    def __init__(self):
        super().__init__("application", [sys.executable, __file__, "{port}"], cpu=CLIENT_CPU)
        self.socket = ""

    def held_s(self):
        """How long it was held by each response since the last call."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/held", timeout=10) as response:
            return json.load(response)


async def application(port):
    held = []

    async def serve(reader, writer):
        writer.transport.set_write_buffer_limits(high=0)
        with_head = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n%s"
        body = bytes(BODY_BYTES)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /held "):
                    text = json.dumps(held).encode()
                    held.clear()
                    writer.write(with_head % (len(text), text))
                    await writer.drain()
                    continue
                began = time.monotonic()
                writer.write(with_head % (len(body), body))
                await writer.drain()
                held.append(time.monotonic() - began)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


class Reader:
    """A client that reads slowly."""

    def __init__(self, port, path):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
        self.head, self.left = b"", None

    def tick(self):
        """Reads what a tick allows. Returns whether there is more to come."""
        try:
            got = self.socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        if not got:
            raise RuntimeError(f"a response ended with {self.left} bytes missing")
        if self.left is None:
            self.head += got
            head, end, got = self.head.partition(b"\r\n\r\n")
            if not end:
                return True
            if not head.startswith(b"HTTP/1.1 200 ") or b"content-length: %d" % BODY_BYTES not in head.lower():
                raise RuntimeError(f"a response begins with {head[:200]!r}")
            self.left = BODY_BYTES
        self.left -= len(got)
        if self.left == 0:
            self.socket.close()
        return self.left > 0


def file_bytes(server):
    """Bytes in files without names that the server holds."""
    total = 0
    for pid in server.pids():
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if os.readlink(link).endswith(" (deleted)"):
                    total += link.stat().st_blocks * 512
            except OSError:
                pass
    return total


def read_slowly(server, application):
    """All readers at a time. Returns what that took of the server and of the application."""
    application.held_s()
    before, cpu_ns, began = server.anonymous_bytes(), server.cpu_ns(), time.monotonic()
    readers = [Reader(server.port, server.path) for _ in range(READERS)]
    anonymous = files = ticks = 0
    while readers:
        due = began + ticks * TICK_S
        time.sleep(max(0, due - time.monotonic()))
        readers = [reader for reader in readers if reader.tick()]
        if ticks % 5 == 0:
            anonymous, files = max(anonymous, server.anonymous_bytes() - before), max(files, file_bytes(server))
        ticks += 1
        if time.monotonic() - began > READERS_TIME_MAX_S:
            raise RuntimeError(f"{len(readers)} readers have not got their bodies after {READERS_TIME_MAX_S} s")
    held = sorted(application.held_s())
    if len(held) != READERS:
        raise RuntimeError(f"the application was asked {len(held)} times")
    return {"requests": READERS, "seconds": time.monotonic() - began, "anonymous_bytes": anonymous, "file_bytes": files,
            "cpu_us": (server.cpu_ns() - cpu_ns) / READERS / 1e3, "held_s": held[len(held) // 2], "held_longest_s": held[-1]}


def case_slow_readers(options):
    """The servers take turns, each started anew: memory that one run has left would be missing in the next."""
    raise_descriptor_limit(4 * READERS)
    runs = {}
    with Application() as upstream:
        for number in range(options.rounds):
            servers = only([proxy for proxy in proxies(upstream, False, "/slow/body") if proxy.name != "pingora"], options)
            for server in servers[:: -1 if number % 2 else 1]:
                try:
                    with server:
                        runs.setdefault(server.name, []).append(read_slowly(server, upstream))
                except (RuntimeError, OSError) as error:
                    failed(server.name, error)
            print(f"  round {number + 1} of {options.rounds}", file=sys.stderr)
    lines = [f"{READERS:,} clients read 1 MiB each with {READ_BYTES / TICK_S / 1024:.0f} KiB/s, all at once; rounds: {options.rounds}. Held is how long the "
             "application's send of a response takes.", "",
             "| server | held, median response, ms | held, slowest response, ms | anonymous memory, MiB | in files, MiB | CPU µs a response | seconds for all |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    of = lambda its, key, scale, digits: told(quartiles([run[key] * scale for run in its]), digits)
    for name, its in sorted(runs.items(), key=lambda item: median(item[1], "held_s")):
        cells = [of(its, "held_s", 1e3, 0), of(its, "held_longest_s", 1e3, 0), of(its, "anonymous_bytes", 1 / (1 << 20), 0),
                 of(its, "file_bytes", 1 / (1 << 20), 0), of(its, "cpu_us", 1, 0), of(its, "seconds", 1, 1)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return runs, lines


def raise_descriptor_limit(wanted):
    """Root may have more than the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))


def with_tunnels(proxy):
    """The same proxy with as many tunnels as are opened."""
    more = ["--upstream-connections", str(TUNNELS + 100)] if proxy.name == "flatout" else []
    other = Proxy(proxy.name, [*proxy.command, *more], proxy.upstream, "/messages")
    other.connections = 2 * TUNNELS + 200
    return other


def keep_tunnels(server):
    """Opens all tunnels, and returns what they cost while each carries a message every so often."""
    before = server.anonymous_bytes()
    command = [GUEST, "keep", f"127.0.0.1:{server.port}", str(TUNNELS), str(EVERY_S)]
    client = children.start(command, pin(CLIENT_CPU), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        began = time.monotonic()
        opened = client.stdout.readline()
        if not opened or int(opened) < TUNNELS:
            raise RuntimeError(f"could not open {TUNNELS} tunnels: {client.stderr.read()[-300:]}")
        run = {"requests": TUNNELS, "opening_s": time.monotonic() - began}
        cpu_ns = server.cpu_ns()
        time.sleep(EVERY_S)
        run["cpu_us"] = (server.cpu_ns() - cpu_ns) / TUNNELS / 1e3
        run["bytes_each"] = (server.anonymous_bytes() - before) / TUNNELS
        if server.name == "flatout":
            server.process.send_signal(signal.SIGUSR2)
            time.sleep(UPGRADED_S)
            if "has taken over" not in (server.folder / "log").read_text():
                raise RuntimeError("it was not upgraded")
        out, errors = client.communicate(timeout=OPENING_TIME_S)
        messages, lost = map(int, out.split())
        return run | {"messages": messages, "lost": lost}
    finally:
        children.stop(client)
        # After an upgrade another process serves, in the group of the first.
        try:
            os.killpg(server.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def case_tunnels(options):
    raise_descriptor_limit(3 * TUNNELS + 1_000)
    runs = {}
    with Origin("messages") as upstream:
        for proxy in only([proxy for proxy in proxies(upstream, True, "/messages") if proxy.name in ("flatout", "nginx", "haproxy")], options):
            server = with_tunnels(proxy)
            try:
                with server:
                    runs[server.name] = [keep_tunnels(server)]
                print(f"  {server.name}: {runs[server.name]}", file=sys.stderr)
            except (RuntimeError, OSError) as error:
                failed(server.name, error)
    lines = [f"{TUNNELS:,} WebSockets over TCP to an upstream at a Unix socket, each with a message of 70 bytes there and back every {EVERY_S} s.", "",
             "| server | anonymous bytes a tunnel | CPU µs a message there and back | share of a CPU | messages | lost tunnels |", "|---|---:|---:|---:|---:|---:|"]
    for name, [run] in runs.items():
        share = run["cpu_us"] * TUNNELS / EVERY_S / 1e6
        lines.append(f"| {name} | {run['bytes_each']:,.0f} | {run['cpu_us']:.1f} | {share:.2%} | {run['messages']:,} | {run['lost']} |")
    if "flatout" in runs:
        lines += ["", f"flatout was upgraded to a new process after {EVERY_S} s, and its tunnels went on for another {UPGRADED_S} s: their messages and losses are counted."]
    return runs, lines


if __name__ == "__main__":
    asyncio.run(application(int(sys.argv[1])))
