"""The case cache: what a hit, a miss and an entry cost, beside other caches in front of the same upstream."""

import os, re, shutil, socket, subprocess, sys, tempfile, time
from pathlib import Path

from counting import per_request
from measure import measure, quartiles, running, table, told, turns, wrk
from proxying import FLATOUT, GUEST
from servers import CLIENT_CPU, Server, flatout_json, only
from smoke import IS_SMOKE, failed, leave_out, sized

CONNECTIONS = 64
SIZES = {"1 KiB": 1 << 10, "16 KiB": 16 << 10, "256 KiB": 256 << 10}

MIB = 1 << 20

# In memory, where everything requested fits.
MEMORY_BYTES = 256 * MIB

# For hits from disk: the cache's memory is much smaller than the requested set, but the page cache holds all of it.
SMALL_BYTES = 8 * MIB
DISK_BYTES = 1 << 30
DISK_COUNTS = {"1 KiB": sized(60_000, smoke=200), "16 KiB": 4_000, "256 KiB": 250}

# The mix: of a million URLs, the hundred most popular get two fifths of the requests.
ZIPF_URLS, ZIPF_BYTES, ZIPF_MEMORY_BYTES = 1_000_000, 2 << 10, 32 * MIB
ZIPF_WARM_UP_S = sized(8, smoke=1)

HERD, HERD_MS = sized(200, smoke=20), 100

# Small entries: at most this many, or as many as are stored in this time.
ENTRY_BYTES, ENTRIES_TIME_S = 100, sized(45, smoke=1)
ENTRIES_MEMORY_BYTES = 4096 * MIB

# Everything is stored when a pass through all URLs has fewer misses than this share.
FILLED_SHARE, FILL_TRIES = 0.005, 60


class Origin(Server):
    """The origin of cached responses, on the client's CPU. It counts its requests."""

    def __init__(self):
        super().__init__("origin", [GUEST, "origin", "127.0.0.1:{port}"], cpu=CLIENT_CPU)

    def count(self):
        return int(fetch(self.port, "/count").rsplit(b"\r\n\r\n", 1)[1])


class Cache(Server):
    """One of the caches, in front of an upstream, with this much memory, and optionally disk."""

    def __init__(self, name, command, origin, memory_bytes, disk_bytes=0):
        super().__init__(name, command)
        self.words = {"UPSTREAM": f"127.0.0.1:{origin.port}", "RAM": memory_bytes, "BYTES": disk_bytes or memory_bytes}
        self.words["KEYS"] = "512m" if memory_bytes >= ENTRIES_MEMORY_BYTES else "32m"
        self.has_disk = disk_bytes > 0

    def __enter__(self):
        # nginx has no memory cache of its own: it gets a folder in memory.
        parent = "/var/tmp" if self.has_disk or self.name != "nginx" else "/dev/shm"
        self.store = tempfile.mkdtemp(prefix="flatout-bench-cache-", dir=parent)
        os.chmod(self.store, 0o777)
        return super().__enter__()

    def __exit__(self, *given):
        super().__exit__(*given)
        shutil.rmtree(self.store, ignore_errors=True)

    def fill(self, word):
        word = super().fill(word)
        words = {**self.words, "STORE": self.store}
        if word.startswith(str(self.folder)) and Path(word).is_file():
            text = Path(word).read_text()
            for key, value in words.items():
                text = text.replace(f"@{key}@", str(value))
            Path(word).write_text(text)
        return re.sub(r"\{([A-Z]+)\}", lambda found: str(words[found[1]]), word)

    def held_bytes(self):
        """Memory of its own, shared by its processes, and of a folder in memory."""
        total = 0
        for pid in self.pids():
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += sum(int(found) * 1024 for found in re.findall(r"^(?:Anonymous|Pss_Shmem):\s+(\d+)", rollup, re.M))
        if self.store.startswith("/dev/shm"):
            total += int(subprocess.run(["du", "-s", "-B1", self.store], capture_output=True, text=True).stdout.split()[0])
        return total


def caches(origin, options, memory_bytes=MEMORY_BYTES, disk_bytes=0):
    flatout = [FLATOUT, "serve", "--to", "http://{UPSTREAM}", "--cache", "1d", "--listen", "127.0.0.1:{port}", "--workers", "1"]
    flatout += ["--cache-memory", "{RAM}"] + (["--cache-dir", "{STORE}", "--cache-size", "{BYTES}"] if disk_bytes else [])
    # It stores entries either in a file or in memory, never in both.
    store = "file,{STORE}/store,{BYTES}" if disk_bytes else "malloc,{RAM}"
    varnish = ["varnishd", "-F", "-j", "none", "-n", "{folder}/varnish", "-a", "127.0.0.1:{port}", "-b", "{UPSTREAM}", "-s", f"main={store}"]
    varnish += ["-s", "Transient=malloc", "-p", "thread_pools=1", "-p", "thread_pool_min=100"]
    traffic_server = ["sh", "-c", 'PROXY_CONFIG_CONFIG_DIR=$(dirname "$0") exec traffic_server', "@conf/trafficserver-cache/records.config"]
    traffic_server += ["@conf/trafficserver-cache/storage.config", "@conf/trafficserver/remap.config", "@conf/trafficserver/ip_allow.yaml"]
    commands = {"flatout": flatout, "nginx": ["nginx", "-c", "@conf/nginx-cache.conf"], "varnish": varnish, "trafficserver": traffic_server}
    programs = {"trafficserver": "traffic_server"}
    here = [name for name, command in commands.items() if shutil.which(programs.get(name, command[0]))]
    for name in commands.keys() - here:
        leave_out(f"{name}, which is not installed")
    return only([Cache(name, commands[name], origin, memory_bytes, disk_bytes) for name in here], options)


def fetch(port, path):
    """One response, to its end."""
    with socket.create_connection(("127.0.0.1", port), 30) as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: s.recv(1 << 16), b""))


def urls(*arguments):
    """A script of URLs with its arguments."""
    return ["urls.lua", *map(str, arguments)]


def fill(server, origin, size, count):
    """Requests in turn until nearly all of `count` URLs are hits."""
    first = hits = 0
    for _ in range(FILL_TRIES):
        before = origin.count()
        requests = wrk(server.url(), CONNECTIONS, 1, urls("cycle", size, count, "hit", first))["requests"]
        first += requests
        hits = hits + requests if origin.count() - before <= FILLED_SHARE * requests else 0
        if hits >= count:
            return
    raise RuntimeError("it does not keep what it is asked for")


def filled(servers, origin, size, count):
    """The running servers that do cache."""
    found = []
    for server in servers:
        try:
            fill(server, origin, size, count)
            found.append(server)
        except RuntimeError as error:
            failed(server.name, error)
    return found


def hit_share(origin, act):
    before = origin.count()
    run = act()
    return run | {"hit_share": 1 - (origin.count() - before) / run["requests"]}


def with_shares(runs, lines):
    """The table, and the share of requests that were hits."""
    shares = {name: told(quartiles([100 * run["hit_share"] for run in its]), 1) for name, its in runs.items()}
    return lines + ["", "Hits of 100 requests: " + ", ".join(f"{name} {share}" for name, share in shares.items()) + "."]


def hits(origin, options, label, disk_bytes=0):
    size, count = SIZES[label], DISK_COUNTS[label] if disk_bytes else 1
    script = urls("cycle", size, count, "hit")
    with running(caches(origin, options, SMALL_BYTES if disk_bytes else MEMORY_BYTES, disk_bytes)) as started:
        ready = filled(started, origin, size, count)
        with flatout_json("our own /json") as reference:
            wrk(reference.url(), CONNECTIONS, 1)
            def act(server):
                return measure(server, CONNECTIONS, options.seconds, script if server is not reference else None)
            runs = turns([reference, *ready], options, lambda server: hit_share(origin, lambda: act(server)))
    lines = table(runs, reference.name, "nginx")
    return runs, with_shares({name: its for name, its in runs.items() if name != reference.name}, lines)


def misses(origin, options):
    first = 0

    def act(server):
        nonlocal first
        run = measure(server, CONNECTIONS, options.seconds, urls("cycle", SIZES["1 KiB"], 10**12, "miss", first))
        first += run["requests"] + CONNECTIONS
        return run

    with running(caches(origin, options)) as started:
        runs = turns(started, options, lambda server: hit_share(origin, lambda: act(server)))
    return runs, with_shares(runs, table(runs, "nginx"))


def zipf(origin, options):
    seed = 0

    def act(server, seconds):
        nonlocal seed
        seed += 1
        return measure(server, CONNECTIONS, seconds, urls("zipf", ZIPF_BYTES, ZIPF_URLS, "zipf", seed))

    with running(caches(origin, options, ZIPF_MEMORY_BYTES)) as started:
        for server in started:
            act(server, ZIPF_WARM_UP_S)
        runs = turns(started, options, lambda server: hit_share(origin, lambda: act(server, options.seconds)))
        held = {server.name: server.held_bytes() for server in started}
    lines = with_shares(runs, table(runs, "nginx"))
    said = ", ".join(f"{name} {count / MIB:,.0f}" for name, count in held.items())
    return runs, lines + ["", f"MiB of memory at the end, with all that a process takes, and with the folder where that is in memory: {said}."]


def herd(origin, options):
    """Many concurrent requests for a response that is not stored: the requests that reach the upstream, and when the last client has its response."""
    number = 0

    def act(server):
        nonlocal number
        number += 1
        before, request = origin.count(), f"GET /late/{HERD_MS}/{server.name}-{number} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".encode()
        clients = [socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(HERD)]
        began = time.time()
        for client in clients:
            client.sendall(request)
        for client in clients:
            said = b"".join(iter(lambda: client.recv(1 << 16), b""))
            client.close()
            if not said.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"a response of the herd: {said[:100]}")
        return {"last_ms": 1000 * (time.time() - began), "asked": origin.count() - before}

    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CLIENT_CPU})
    try:
        with running(caches(origin, options)) as started:
            runs = turns(started, options, act)
    finally:
        os.sched_setaffinity(0, affinity)
    lines = ["| server | requests to the upstream (quartiles) | last response after ms (quartiles) |", "|---|---:|---:|"]
    for name, its in runs.items():
        lines.append(f"| {name} | {told(quartiles([run['asked'] for run in its]), 0)} | {told(quartiles([run['last_ms'] for run in its]), 0)} |")
    return runs, lines


def entries(origin, options):
    """Memory of an entry beyond its own bytes: URL, fields and body."""
    runs = {}
    for server in caches(origin, options, ENTRIES_MEMORY_BYTES, 0):
        try:
            with server:
                wrk(server.url(), 8, 1, urls("cycle", ENTRY_BYTES, 1, "warm-up"))
                time.sleep(1)
                before, asked, ends, first = server.held_bytes(), origin.count(), time.time() + ENTRIES_TIME_S, 0
                while origin.count() - asked < options.entries and time.time() < ends:
                    first += wrk(server.url(), CONNECTIONS, 2, urls("cycle", ENTRY_BYTES, 10**12, "entry", first))["requests"]
                    first += CONNECTIONS
                time.sleep(1)
                path = f"/c/{ENTRY_BYTES}/entry/{first // 2}"
                stored = origin.count() - asked
                own = len(fetch(origin.port, path)) + len(f"http://127.0.0.1:{server.port}{path}")
                each = (server.held_bytes() - before) / stored
                runs[server.name] = {"entries": stored, "bytes_each": each, "own_bytes": own}
        except RuntimeError as error:
            failed(server.name, error)
    lines = ["| server | entries | bytes of memory each | beyond URL, fields and body |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {run['entries']:,} | {run['bytes_each']:,.0f} | {run['bytes_each'] - run['own_bytes']:,.0f} |" for name, run in runs.items()]
    lines += ["", "trafficserver's index has its full size from the start, and is not in this; its entries are in memory and on disk."]
    return runs, lines


def instructions(origin, options):
    """User instructions of a hit and of our own `/json`, with 16 pipelined requests: all with the same head, and with a field whose
    value differs each time."""
    counts = {}
    for label, server in {"our own /json": flatout_json(), "a hit of 1 KiB": caches(origin, options)[0]}.items():
        server.path = server.path if label.endswith("/json") else "/c/1024/counted"
        for how, differ in [("the same head", False), ("heads that differ", True)]:
            counts[f"{label}, {how}"] = per_request(server, 16, differ)
    lines = ["| request | user instructions |", "|---|---:|"] + [f"| {label} | {count:,.0f} |" for label, count in counts.items()]
    return counts, lines


PARTS = {f"ram {label}": (f"Hits of {label} from memory", lambda origin, options, label=label: hits(origin, options, label)) for label in SIZES}
PARTS |= {f"disk {label}": (f"Hits of {label} from disk, which the kernel has in its page cache", lambda origin, options, label=label: hits(origin, options, label, DISK_BYTES)) for label in SIZES}
PARTS |= {"misses": ("Misses of 1 KiB, all of which are stored", misses),
          "zipf": (f"A mix of {ZIPF_URLS:,} URLs of {ZIPF_BYTES >> 10} KiB, number n with a probability of about 1/n, in {ZIPF_MEMORY_BYTES // MIB} MiB", zipf),
          "herd": (f"{HERD} requests at once for what the upstream takes {HERD_MS} ms for", herd),
          "entries": (f"Small entries: {ENTRY_BYTES} bytes", entries),
          "instructions": ("Instructions (valgrind --tool=callgrind)", instructions)}
if IS_SMOKE:
    # One of each kind; instructions are those of `./x bench serve`.
    PARTS = {part: act for part, act in PARTS.items() if "16 KiB" not in part and "256 KiB" not in part and part != "instructions"}


def case_cache(options):
    runs, lines = {}, []
    wanted = [part for part in PARTS if not options.parts or any(part.startswith(word) for word in options.parts.split(","))]
    with Origin() as origin:
        for part in wanted:
            print(f"  {part}", file=sys.stderr)
            label, act = PARTS[part]
            runs[label], more = act(origin, options)
            lines += ["", f"### {label}", "", *more]
    return runs, lines
