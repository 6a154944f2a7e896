#!/usr/bin/env python3
"""One volume, three services: tables are uploaded to a writer, two transformers make JSON of them, and `flatout serve` serves it. On the
way a transformer and the writer are killed. `./x demo volume` builds what it needs and calls it. With bindfs, each service sees the
volume through a mount of its own, as machines see one over NFS."""

import base64, hashlib, http.client, json, os, shutil, signal, subprocess, sys, threading, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import children  # noqa: E402
from screen import BOLD, DIM, OFF, done, say  # noqa: E402
from servers import free_port  # noqa: E402
from smoke import sized  # noqa: E402

BINARIES = Path(os.environ["FLATOUT_BINARIES"])
WORK = ROOT / "target/demo-volume"
TABLES, ROWS = sized(200, smoke=20), sized(2_000, smoke=200)
# How long a table may take until it is served; a killed transformer's files wait for its lease, 15 s.
PATIENCE_S = 60
SWEEP = "sweep=500ms"
POINTS = [WORK / name for name in ("writer", "transformer", "server")]


def table(number):
    """A table, and the JSON that is made of it."""
    rows = [{"id": row, "name": f'"{number}", {row}', "price": row / 4 + 0.1} for row in range(ROWS)]
    lines = ["id,name,price"] + ['{},"{}",{}'.format(row["id"], row["name"].replace('"', '""'), row["price"]) for row in rows]
    return ("\n".join(lines) + "\n").encode(), rows


def mounts(volume):
    """The volume as three machines see it."""
    if not shutil.which("bindfs") or not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        say(f"  {DIM}left out: a mount for each service needs root and bindfs{OFF}")
        return [volume] * 3, []
    for point in POINTS:
        point.mkdir()
        # No attributes are kept: each service sees at once what another did, as with NFS mounted with noac.
        subprocess.run(["bindfs", "-o", "attr_timeout=0,entry_timeout=0", str(volume), str(point)], check=True)
    return POINTS, POINTS


def unmount(points):
    for point in points:
        if os.path.ismount(point):
            subprocess.run(["umount", "--lazy", str(point)], check=True)


def request(port, method, target, body=None, fields=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, target, body, fields or {})
    response = connection.getresponse()
    return response.status, dict(response.getheaders()), response.read()


def put(port, number, bytes):
    digest = base64.b64encode(hashlib.sha256(bytes).digest()).decode()
    status, _, text = request(port, "PUT", f"/files/{number:03}.csv", bytes, {"Content-Digest": f"sha-256=:{digest}:"})
    assert status == 201, text


def upload(port, number, bytes, interrupt=None):
    """By tus, in three pieces; `interrupt` is called after the first."""
    name = base64.b64encode(f"{number:03}.csv".encode()).decode()
    version = {"Tus-Resumable": "1.0.0"}
    status, fields, text = request(
        port, "POST", "/uploads", fields=version | {"Upload-Length": str(len(bytes)), "Upload-Metadata": f"filename {name}"})
    assert status == 201, text
    at, piece = fields["Location"], len(bytes) // 3 + 1
    while True:
        status, fields, text = request(port, "HEAD", at, fields=version)
        offset = int(fields["Upload-Offset"])
        part = bytes[offset:offset + piece]
        status, fields, text = request(
            port, "PATCH", at, part,
            version | {"Upload-Offset": str(offset), "Content-Type": "application/offset+octet-stream"})
        assert status == 204, text
        if int(fields["Upload-Offset"]) == len(bytes):
            return
        if interrupt:
            interrupt()
            interrupt = None


class Services:
    def __init__(self, points):
        self.points = points
        self.writer_port, self.server_port = free_port(), free_port()
        self.log = open(WORK / "log", "w")

    def start(self, *command):
        return children.start([str(part) for part in command], stdout=self.log, stderr=self.log)

    def start_writer(self):
        self.writer = self.start(BINARIES / "volume-writer", "--volume", self.points[0], "--listen", f"127.0.0.1:{self.writer_port}")
        until("the writer serves", lambda: request(self.writer_port, "GET", "/healthz")[0] == 200)

    def start_transformer(self, name):
        return self.start(BINARIES / "volume-transformer", "--volume", self.points[1], "--name", name)

    def start_server(self):
        self.start(BINARIES / "flatout", "serve", self.points[2] / "public", "--listen", f"127.0.0.1:{self.server_port}", "--changes", SWEEP)
        until("the server serves", lambda: request(self.server_port, "GET", "/")[0] in (200, 404))

    def restart_writer(self):
        self.writer.send_signal(signal.SIGKILL)
        self.writer.wait()
        self.start_writer()


def until(what, is_so):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if is_so():
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            say(f"not in time: {what}; see {WORK / 'log'}")
            sys.exit(1)
        time.sleep(0.05)


def main():
    children.end_on_signals()
    # Of a run that was killed: what is below them must not be removed through them.
    unmount(POINTS)
    shutil.rmtree(WORK, ignore_errors=True)
    volume = WORK / "volume"
    volume.mkdir(parents=True)
    say(f"{BOLD}one volume, three services{OFF} {DIM}{TABLES} tables of {ROWS} rows; {volume}{OFF}")
    points, mounted = mounts(volume)
    try:
        run(Services(points))
    finally:
        for process in children.started:
            process.kill()
            process.wait()
        unmount(mounted)


def run(services):
    services.start_writer()
    services.start_server()
    first = services.start_transformer("one")
    services.start_transformer("two")
    began, times, broken = time.monotonic(), {}, []

    def look(number, rows):
        """Waits until the table is served. Whatever is served on the way must be whole."""
        def is_served():
            status, _, bytes = request(services.server_port, "GET", f"/{number:03}.csv.json")
            if status != 200:
                return False
            try:
                if json.loads(bytes) != rows:
                    broken.append(number)
            except ValueError:
                broken.append(number)
            return True
        sent = time.monotonic()
        until(f"table {number} is served", is_served)
        times[number] = time.monotonic() - sent

    watchers = []
    for number in range(TABLES):
        bytes, rows = table(number)
        if number % 2:
            put(services.writer_port, number, bytes)
        else:
            upload(services.writer_port, number, bytes, services.restart_writer if number == TABLES // 2 else None)
        if number == TABLES // 3:
            first.send_signal(signal.SIGKILL)
        watchers.append(threading.Thread(target=look, args=(number, rows), daemon=True))
        watchers[-1].start()
    done(f"{TABLES} tables uploaded in {time.monotonic() - began:.1f} s; transformer one was killed after {TABLES // 3}, "
         f"the writer in the middle of upload {TABLES // 2}, which went on")
    for watcher in watchers:
        watcher.join(PATIENCE_S)
    if len(times) < TABLES or broken:
        say(f"{TABLES - len(times)} tables are missing, {len(broken)} were broken; see {WORK / 'log'}")
        sys.exit(1)
    ordered = sorted(times.values())
    done(f"all are served, whole and right: from upload to response p50 {ordered[len(ordered) // 2]:.1f} s, longest {ordered[-1]:.1f} s")
    say(f"\nthe files stay in {WORK / 'volume'}; the programs are in examples/volume")


main()
