"""Folders on volumes: what requests for a file in memory wait while other clients want files that a slow volume has to fetch, and what it
costs to find changes in a large folder by looking at all of its files."""

import os, shutil, socket, statistics, subprocess, sys, threading, time

import children
from measure import flatout_bench, quartiles, running, told, turns
from servers import CLIENT_CPU, ROOT, Server, flatout_files, installed, nginx, only, pin
from smoke import leave_out, sized

HERE = ROOT / "target/bench-volume"
FOLDER, MOUNT = HERE / "folder", HERE / "mount"
DELAY_MS, BYTES_PER_S = 50, 5_000_000
HOT_BYTES, COLD_BYTES = 10 << 10, 64 << 10
# The first look at the folder takes each of them the delay.
COLD_FILES = sized(60, smoke=8)
RATE, CONNECTIONS = 2_000, 8
FETCHERS = 4
STATES = ("alone", "cold")
# Debian's, which has its packages.
PYTHON = "/usr/bin/python3"


class Mount:
    """The volume, or nothing where FUSE cannot be used."""

    def __enter__(self):
        FOLDER.mkdir(parents=True, exist_ok=True)
        MOUNT.mkdir(exist_ok=True)
        (FOLDER / "hot.bin").write_bytes(os.urandom(HOT_BYTES))
        for at in range(COLD_FILES):
            (FOLDER / f"cold-{at}.bin").write_bytes(os.urandom(COLD_BYTES))
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slow_mount.py")
        self.process = children.start([PYTHON, program, str(FOLDER), str(MOUNT), str(DELAY_MS), str(BYTES_PER_S)], pin(CLIENT_CPU))
        deadline = time.time() + 10
        while not os.path.ismount(MOUNT):
            if self.process.poll() is not None or time.time() > deadline:
                self.__exit__()
                raise RuntimeError("the volume cannot be mounted")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "--lazy", str(MOUNT)], stderr=subprocess.DEVNULL)
        children.stop(self.process)
        shutil.rmtree(FOLDER, ignore_errors=True)


def is_possible():
    has_fuse = subprocess.run([PYTHON, "-c", "import fusepy"], capture_output=True).returncode == 0 if os.path.exists(PYTHON) else False
    return has_fuse and os.geteuid() == 0 and os.path.exists("/dev/fuse")


def fetch(port, seconds):
    """Clients that each want one file after the other, of which nothing is in the page cache. Prints the number of files, and of failures."""
    ends, counts, failures = time.monotonic() + seconds, [0] * FETCHERS, [0] * FETCHERS

    def client(at):
        number = at
        while time.monotonic() < ends:
            name, number = f"cold-{number % COLD_FILES}.bin", number + FETCHERS
            with open(MOUNT / name, "rb") as cold:
                os.posix_fadvise(cold.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with socket.create_connection(("127.0.0.1", port), 30) as connection:
                connection.sendall(f"GET /{name} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".encode())
                received = bytearray()
                while piece := connection.recv(1 << 16):
                    received += piece
            good = received.startswith(b"HTTP/1.1 200") and len(received) > COLD_BYTES
            counts[at], failures[at] = counts[at] + good, failures[at] + (not good)

    threads = [threading.Thread(target=client, args=(at,)) for at in range(FETCHERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(counts), sum(failures))


def run(server, state, seconds):
    fetching = None
    if state == "cold":
        command = [sys.executable, __file__, str(server.port), str(seconds)]
        fetching = children.start(command, pin(CLIENT_CPU), stdout=subprocess.PIPE, text=True)
    found = flatout_bench(server.url(), CONNECTIONS, seconds, RATE)
    files, failures = map(int, fetching.communicate()[0].split()) if fetching else (0, 0)
    return found | {"files_per_s": files / seconds, "failures": failures}


def servers():
    flatout = flatout_files("/hot.bin", MOUNT)
    more = Server("flatout serve", [*flatout.command, "--changes", "sweep=10s", "--small-bytes", "16KiB"], flatout.path, root=MOUNT)
    return [more, *installed(nginx("/hot.bin", MOUNT))]


def case_volume(options):
    if not is_possible():
        leave_out("the slow volume; it needs root, /dev/fuse and python3-fusepy")
        return {}, ["It was left out."]
    with Mount(), running(only(servers(), options)) as started:
        # Until the file is in memory, or open.
        time.sleep(sized(8, smoke=2))
        act = lambda server: {state: run(server, state, options.seconds) for state in STATES}
        runs = turns(started, options, act)
    lines = [f"{RATE:,} requests a second for one file of {HOT_BYTES >> 10} KiB over {CONNECTIONS} connections, in an open loop, alone, and while {FETCHERS} other",
             f"clients want files of {COLD_BYTES >> 10} KiB that are not in the page cache. The folder is on a volume that takes {DELAY_MS} ms for each operation and reads",
             f"{BYTES_PER_S // 1_000_000} MB/s (FUSE, `bench/slow_mount.py`). nginx has `open_file_cache`, flatout `changes sweep=10s` and `small-bytes 16KiB`, so that",
             "it keeps only the one file in memory.", "",
             "| server | other clients | their files/s | failures | p50 µs (quartiles) | p99 µs (quartiles) | max µs (quartiles) |", "|---|---|---:|---:|---:|---:|---:|"]
    for name, its in runs.items():
        for state in STATES:
            these = [each[state] for each in its]
            cells = [told(quartiles([each[key] for each in these]), 0) for key in ("p50_us", "p99_us", "max_us")]
            rate, failed = statistics.median(each["files_per_s"] for each in these), sum(each["failures"] for each in these)
            lines.append(f"| {name} | {'none' if state == 'alone' else 'files of the volume'} | {rate:,.1f} | {failed} | " + " | ".join(cells) + " |")
    return runs, lines


SWEPT = ROOT / "target/bench-sweep"
SWEPT_FOLDERS, SWEPT_FILES = sized(300, smoke=3), 100
WAYS = {"none": "off", "inotify": "inotify", "a sweep each second": "sweep=1s"}


def make_swept():
    for folder in range(SWEPT_FOLDERS):
        (SWEPT / str(folder)).mkdir(parents=True, exist_ok=True)
        for at in range(SWEPT_FILES):
            (SWEPT / str(folder) / f"{at}.json").write_text(f"{folder} {at}")


def swept_run(server, seconds):
    before = server.cpu_ns()
    found = flatout_bench(server.url(), CONNECTIONS, seconds, RATE)
    return found | {"cpu_ms_per_s": (server.cpu_ns() - before) / 1e6 / seconds}


def case_sweep(options):
    make_swept()
    try:
        plain = flatout_files("/7/7.json" if SWEPT_FOLDERS > 7 else "/2/7.json", SWEPT)
        servers = [Server(name, [*plain.command, "--changes", how], plain.path, root=SWEPT) for name, how in WAYS.items()]
        with running(only(servers, options)) as started:
            time.sleep(sized(10, smoke=2))
            runs = turns(started, options, lambda server: swept_run(server, options.seconds))
    finally:
        shutil.rmtree(SWEPT, ignore_errors=True)
    lines = [f"{RATE:,} requests a second for one of {SWEPT_FOLDERS * SWEPT_FILES:,} files in {SWEPT_FOLDERS} folders of a local disk, in an open loop, by how flatout finds",
             "changes. The CPU time of the process is that of the requests and of the sweeps.", "",
             "| changes | CPU ms/s (quartiles) | p50 µs (quartiles) | p99 µs (quartiles) | max µs (quartiles) |", "|---|---:|---:|---:|---:|"]
    for name, its in runs.items():
        cells = [told(quartiles([each[key] for each in its]), digits) for key, digits in (("cpu_ms_per_s", 1), ("p50_us", 0), ("p99_us", 0), ("max_us", 0))]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    names = list(runs)
    if len(names) == len(WAYS):
        more = [run["cpu_ms_per_s"] - base["cpu_ms_per_s"] for run, base in zip(runs[names[2]], runs[names[0]])]
        lines += ["", f"A sweep of all files: {told(quartiles(more), 1)} ms of CPU time."]
    return runs, lines


if __name__ == "__main__":
    fetch(int(sys.argv[1]), float(sys.argv[2]))
