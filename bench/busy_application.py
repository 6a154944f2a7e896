"""What a proxy does for an application that has few workers and many clients: responses to slow readers, and tunnels that rarely carry a
message."""

import asyncio, json, os, resource, signal, socket, subprocess, sys, time, urllib.request
from pathlib import Path

from measure import median, quartiles, told
from proxying import GUEST, Origin, Proxy, proxies
import children
from servers import CLIENT_CPU, Server, only, pin
from smoke import failed, sized

# Slow readers: how many, the bytes of their bodies, and how many each reads in a tick. A body of 1 MiB nearly fits in the kernel's
# buffers on both sides of a proxy, one of 8 MiB does not.
SLOW = [(sized(1_000, smoke=20), 1 << 20, sized(10 << 10, smoke=200 << 10)), (sized(100, smoke=5), 8 << 20, sized(80 << 10, smoke=1600 << 10))]
TICK_S = 0.1

# What a client far away has announced to be able to take: at least twice what it reads in a tick.
RECEIVE_BUFFER_BYTES = 16 << 10

# Until the last reader has all of its body.
READERS_TIME_MAX_S = 120

# Tunnels: each carries a message there and back every so many seconds.
TUNNELS_WANTED = sized(100_000, smoke=200)
EVERY_S = sized(60, smoke=1)
OPENING_TIME_S = 120
SPARE_DESCRIPTORS = 1_000

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
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /held "):
                    text = json.dumps(held).encode()
                    held.clear()
                    writer.write(with_head % (len(text), text))
                    await writer.drain()
                    continue
                body = bytes(int(head.split(b" ", 2)[1].rpartition(b"/")[2]))
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

    def __init__(self, port, path, body_bytes, read_bytes):
        self.body_bytes, self.read_bytes = body_bytes, read_bytes
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, max(RECEIVE_BUFFER_BYTES, 2 * read_bytes))
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
        self.head, self.left = b"", None

    def tick(self):
        """Reads what a tick allows. Returns whether there is more to come."""
        try:
            got = self.socket.recv(self.read_bytes, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        if not got:
            raise RuntimeError(f"a response ended with {self.left} bytes missing")
        if self.left is None:
            self.head += got
            head, end, got = self.head.partition(b"\r\n\r\n")
            if not end:
                return True
            if not head.startswith(b"HTTP/1.1 200 ") or b"content-length: %d" % self.body_bytes not in head.lower():
                raise RuntimeError(f"a response begins with {head[:200]!r}")
            self.left = self.body_bytes
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


def read_slowly(server, application, count, body_bytes, read_bytes):
    """All readers at a time. Returns what that took of the server and of the application."""
    application.held_s()
    before, cpu_ns, began = server.anonymous_bytes(), server.cpu_ns(), time.monotonic()
    readers = [Reader(server.port, f"/slow/{body_bytes}", body_bytes, read_bytes) for _ in range(count)]
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
    if len(held) != count:
        raise RuntimeError(f"the application was asked {len(held)} times")
    return {"requests": count, "seconds": time.monotonic() - began, "anonymous_bytes": anonymous, "file_bytes": files,
            "cpu_us": (server.cpu_ns() - cpu_ns) / count / 1e3, "held_s": held[len(held) // 2], "held_longest_s": held[-1]}


def case_slow_readers(options):
    raise_descriptor_limit(4 * max(count for count, *_ in SLOW))
    runs, lines = {}, ["Held: how long the application takes to send a response."]
    with Application() as upstream:
        for count, body_bytes, read_bytes in SLOW:
            title = f"{count:,} clients read {body_bytes >> 20} MiB each with {read_bytes / TICK_S / 1024:.0f} KiB/s"
            runs[title] = rounds_of_readers(upstream, options, count, body_bytes, read_bytes)
            lines += ["", f"### {title}, all at once", "", *table_of_readers(runs[title])]
    return runs, lines


def rounds_of_readers(upstream, options, *readers):
    """The servers take turns, each started anew: memory that one run has left would be missing in the next."""
    runs = {}
    for number in range(options.rounds):
        servers = only([proxy for proxy in proxies(upstream, False, "/slow/") if proxy.name != "pingora"], options)
        for server in servers[:: -1 if number % 2 else 1]:
            try:
                with server:
                    runs.setdefault(server.name, []).append(read_slowly(server, upstream, *readers))
            except (RuntimeError, OSError) as error:
                failed(server.name, error)
        print(f"  round {number + 1} of {options.rounds}", file=sys.stderr)
    return runs


def table_of_readers(runs):
    lines = ["| server | held, median response, ms | held, slowest response, ms | anonymous memory, MiB | in files, MiB | CPU µs a response | seconds for all |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    of = lambda its, key, scale, digits: told(quartiles([run[key] * scale for run in its]), digits)
    for name, its in sorted(runs.items(), key=lambda item: median(item[1], "held_s")):
        cells = [of(its, "held_s", 1e3, 0), of(its, "held_longest_s", 1e3, 0), of(its, "anonymous_bytes", 1 / (1 << 20), 0),
                 of(its, "file_bytes", 1 / (1 << 20), 0), of(its, "cpu_us", 1, 0), of(its, "seconds", 1, 1)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def raise_descriptor_limit(wanted):
    """As near to this as is allowed: root may have more than the hard limit, if it has CAP_SYS_RESOURCE. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
        except ValueError:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def tunnels():
    """How many are opened: a proxy has two descriptors for each, and some more."""
    return min(TUNNELS_WANTED, (raise_descriptor_limit(2 * TUNNELS_WANTED + SPARE_DESCRIPTORS) - SPARE_DESCRIPTORS) // 2)


def with_tunnels(proxy, count):
    """The same proxy with as many tunnels as are opened."""
    more = ["--upstream-connections", str(count + 100)] if proxy.name == "flatout" else []
    other = Proxy(proxy.name, [*proxy.command, *more], proxy.upstream, "/messages")
    # HAProxy counts clients alone; nginx closes connections that wait for a request when only a sixteenth of its connections is free.
    other.connections = count + 200 if proxy.name == "haproxy" else 2 * count + count // 6 + 200
    return other


def keep_tunnels(server, count):
    """Opens all tunnels, and returns what they cost while each carries a message every so often."""
    before = server.anonymous_bytes()
    command = [GUEST, "keep", f"127.0.0.1:{server.port}", str(count), str(EVERY_S)]
    client = children.start(command, pin(CLIENT_CPU), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        began = time.monotonic()
        opened = client.stdout.readline()
        if not opened or int(opened) < count:
            raise RuntimeError(f"could not open {count} tunnels: {client.stderr.read()[-300:]}")
        run = {"requests": count, "opening_s": time.monotonic() - began}
        cpu_ns = server.cpu_ns()
        time.sleep(EVERY_S)
        run["cpu_us"] = (server.cpu_ns() - cpu_ns) / count / 1e3
        run["bytes_each"] = (server.anonymous_bytes() - before) / count
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
    count, runs = tunnels(), {}
    with Origin("messages") as upstream:
        for proxy in only([proxy for proxy in proxies(upstream, True, "/messages") if proxy.name in ("flatout", "nginx", "haproxy")], options):
            server = with_tunnels(proxy, count)
            try:
                with server:
                    runs[server.name] = [keep_tunnels(server, count)]
                print(f"  {server.name}: {runs[server.name]}", file=sys.stderr)
            except (RuntimeError, OSError) as error:
                failed(server.name, error)
    why = "" if count == TUNNELS_WANTED else f" {TUNNELS_WANTED:,} do not fit: a process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[1]:,} descriptors here."
    lines = [f"{count:,} WebSockets over TCP to an upstream at a Unix socket, each with a message of 70 bytes there and back every {EVERY_S} s.{why} nginx closes a tunnel that has carried nothing for 60 s by default.", "",
             "| server | anonymous bytes a tunnel | CPU µs a message there and back | share of a CPU | messages | lost tunnels |", "|---|---:|---:|---:|---:|---:|"]
    for name, [run] in runs.items():
        share = run["cpu_us"] * count / EVERY_S / 1e6
        lines.append(f"| {name} | {run['bytes_each']:,.0f} | {run['cpu_us']:.1f} | {share:.2%} | {run['messages']:,} | {run['lost']} |")
    if "flatout" in runs:
        lines += ["", f"flatout was upgraded to a new process after {EVERY_S} s, and its tunnels went on for another {UPGRADED_S} s: their messages and losses are counted."]
    return runs, lines


if __name__ == "__main__":
    asyncio.run(application(int(sys.argv[1])))
