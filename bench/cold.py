"""The case of a file that is not in the page cache: what small requests wait while one worker sends it to another client."""

import os, shutil, socket, statistics, subprocess, sys, time

from measure import flatout_bench, quartiles, running, told, turns
import children
from servers import CLIENT_CPU, ROOT, flatout_files, installed, nginx, only, pin
from smoke import sized

# On the disk of the sources, because a temporary directory may be in memory.
FOLDER = ROOT / "target/bench-cold"
BIG_MIB = sized(256, smoke=8)
SMALL_RATE, SMALL_CONNECTIONS = 2_000, 8
STATES = ("alone", "warm", "cold")
READ_BYTES = 1 << 20


def make_folder():
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "small.txt").write_text("small")
    with open(FOLDER / "big.bin", "wb") as big:
        for _ in range(BIG_MIB):
            big.write(os.urandom(1 << 20))
        big.flush()
        # Dirty pages cannot be evicted.
        os.fsync(big.fileno())


class Fetching:
    """A client that fetches the large file again and again for as long as the block lasts."""

    def __init__(self, server, state):
        command = [sys.executable, __file__, str(server.port), state]
        pipe = subprocess.PIPE
        self.process = state != "alone" and children.start(command, pin(CLIENT_CPU), stdin=pipe, stdout=pipe, text=True)

    def __enter__(self):
        if self.process:
            self.process.stdout.readline()
        return self

    def __exit__(self, *_):
        self.mib_per_s = float(self.process.communicate()[0] or 0) if self.process else 0


def fetch(port, state):
    """In a separate process: reports its start, and its rate when stdin closes."""
    os.set_blocking(0, False)
    print("began", flush=True)
    began, received = time.perf_counter(), 0
    while sys.stdin.buffer.raw.read(1) is None:
        if state == "cold":
            evict()
        received += fetch_once(port)
    print(received / (1 << 20) / (time.perf_counter() - began))


def evict():
    with open(FOLDER / "big.bin", "rb") as big:
        os.posix_fadvise(big.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fetch_once(port):
    """The number of bytes until the end; they are counted, not copied."""
    buffer, total = bytearray(READ_BYTES), 0
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(b"GET /big.bin HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
        while count := s.recv_into(buffer, READ_BYTES, socket.MSG_TRUNC):
            total += count
    return total


def run(server, state, seconds):
    if state == "warm":
        (FOLDER / "big.bin").read_bytes()
    with Fetching(server, state) as fetching:
        found = flatout_bench(server.url(), SMALL_CONNECTIONS, seconds, SMALL_RATE)
    return found | {"mib_per_s": fetching.mib_per_s}


def case_cold(options):
    make_folder()
    try:
        with running(only([flatout_files("/small.txt", FOLDER), *installed(nginx("/small.txt", FOLDER))], options)) as started:
            time.sleep(1)
            act = lambda server: {state: run(server, state, options.seconds) for state in STATES}
            runs = turns(started, options, act)
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    lines = [f"{SMALL_RATE:,} small requests a second over {SMALL_CONNECTIONS} connections, in an open loop, while the same worker",
             f"sends a file of {BIG_MIB} MiB to one client, again and again: from the page cache, and evicted before each time.", "",
             "| server | the large file | its MiB/s | p50 µs (quartiles) | p99 µs (quartiles) | max µs (quartiles) |", "|---|---|---:|---:|---:|---:|"]
    for name, its in runs.items():
        for state in STATES:
            these = [each[state] for each in its]
            cells = [told(quartiles([each[key] for each in these]), 0) for key in ("p50_us", "p99_us", "max_us")]
            rate = statistics.median(each["mib_per_s"] for each in these)
            lines.append(f"| {name} | {state if state != 'alone' else 'none'} | {rate:,.0f} | " + " | ".join(cells) + " |")
    return runs, lines


if __name__ == "__main__":
    fetch(int(sys.argv[1]), sys.argv[2])
