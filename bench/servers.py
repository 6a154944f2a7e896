"""The measured servers: how each is started and pinned, and its resource use."""

import atexit, copy, os, platform, random, re, shutil, signal, socket, tempfile, time
from pathlib import Path

import children
from smoke import leave_out

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
RESULTS = BENCH / "results"

# The programs that are measured: the release build, unless the environment names the folder of another one.
BINARIES = Path(os.environ.get("FLATOUT_BINARIES") or ROOT / "target/release").resolve()
CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPU, CLIENT_CPU = CPUS[0], CPUS[-1]

# How long a server may take until it accepts connections.
STARTING_TIME_S = 20

# How many sockets the staged floor reads from before it sends, as many as the engine.
STAGED = 16

SIZES = {"1 KiB": 1 << 10, "16 KiB": 16 << 10, "1 MiB": 1 << 20}
SITE = Path(tempfile.gettempdir()) / f"flatout-bench-site-{os.getpid()}"


def program(name):
    """The path of one of our own programs."""
    return str(BINARIES / name)


def make_site():
    SITE.mkdir(exist_ok=True)
    os.chmod(SITE, 0o755)
    (SITE / "hello.json").write_text('{"message":"Hello, World!"}')
    for size in SIZES.values():
        (SITE / f"{size}.bin").write_bytes(os.urandom(size))


def pin(cpu):
    """For a child: pins it before it starts."""
    return lambda: os.sched_setaffinity(0, {cpu})


# Ports of servers: below those that the kernel gives to clients, and to servers that do not mind which one they get. A port that was free
# would otherwise be another program's before its server binds it.
PORTS = range(10_000, 32_000)
given_ports = set()


def free_port():
    """A port that is free. Several benchmarks may run at the same time."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in given_ports:
            given_ports.add(port)
            return port


class Server:
    """One server process (with its children), pinned to a CPU."""

    def __init__(self, name, command, path="/json", cpu=SERVER_CPU, root=SITE):
        self.name, self.command, self.path, self.cpu, self.root = name, command, path, cpu, root
        self.renew()

    def renew(self):
        """A folder and a port for the next start."""
        self.folder = Path(tempfile.mkdtemp(prefix="flatout-bench-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)  # also if it never starts
        os.chmod(self.folder, 0o777)  # h2o gives up root before it writes its pid file
        self.port = free_port()

    def view(self, name, path):
        """The same process under another path; it starts and ends with the server that it is a view of."""
        other = copy.copy(self)
        other.name, other.path = name, path
        return other

    def __enter__(self):
        if not self.folder.exists():
            self.renew()
        command = [self.fill(word) for word in self.command]
        self.log = open(self.folder / "log", "wb")
        env = {**os.environ, "GOMAXPROCS": "1"}
        self.process = children.start(command, pin(self.cpu), stdout=self.log, stderr=self.log, env=env)
        deadline = time.time() + STARTING_TIME_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if self.process.poll() is not None or time.time() > deadline:
                    said = (self.folder / "log").read_text()[-500:]
                    self.__exit__()
                    raise RuntimeError(f"{self.name} did not start: {said}")
                time.sleep(0.05)

    def __exit__(self, *_):
        for pid in self.pids()[::-1]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        children.stop(self.process, signal.SIGKILL)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def fill(self, word):
        """Fills in a port, and makes a config file of a template."""
        if word.startswith("@conf/"):
            text = (BENCH / word[1:]).read_text()
            for key, value in {"PORT": self.port, "ROOT": self.root, "DIR": self.folder}.items():
                text = text.replace(f"@{key}@", str(value))
            out = self.folder / Path(word).name
            out.write_text(text)
            return str(out)
        return word.replace("{port}", str(self.port)).replace("{folder}", str(self.folder))

    def pids(self):
        found, queue = [], [self.process.pid]
        while queue:
            pid = queue.pop()
            found.append(pid)
            try:
                queue += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except OSError:
                pass
        return found

    def cpu_ns(self):
        """Nanoseconds on a CPU so far, as the scheduler counts them."""
        total = 0
        for pid in self.pids():
            for task in Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
        return total

    def cpu_ticks(self):
        """User and kernel ticks so far: sampled, for the split."""
        user = kernel = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            user, kernel = user + int(fields[11]), kernel + int(fields[12])
        return user, kernel

    def anonymous_bytes(self):
        total = 0
        for pid in self.pids():
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(re.search(r"^Anonymous:\s+(\d+)", rollup, re.M)[1]) * 1024
        return total

    def url(self):
        return f"http://127.0.0.1:{self.port}{self.path}"


def json_example(binary, name):
    return Server(name, [str(binary), "--listen", "127.0.0.1:{port}", "--workers", "1"])


def flatout_json(name="flatout"):
    return json_example(program("hello-json"), name)


def flatout_files(path, root=SITE):
    command = [program("flatout"), "serve", str(root), "--listen", "127.0.0.1:{port}", "--workers", "1"]
    return Server("flatout serve", command, path, root=root)


def observed():
    """The JSON API of `flatout climb` as it is, counted, and logged into a file: what observing costs is the difference."""
    log = ["--access-log", "{folder}/access.log"]
    flags = {"not observed": [], "with metrics": ["--metrics"], "with an access log": log, "with both": ["--metrics", *log]}
    command = [program("flatout"), "json-api", "--listen", "127.0.0.1:{port}", "--workers", "1"]
    return [Server(name, command + more) for name, more in flags.items()]


def floor():
    return Server("floor", [program("floor"), "127.0.0.1:{port}"])


def floor_staged():
    return Server("floor staged", [program("floor"), "127.0.0.1:{port}", "--staged", str(STAGED)])


def guest_echo():
    """The upstream of the two below, on the client's CPU."""
    return Server("echo", [program("guest"), "echo", "127.0.0.1:{port}"], cpu=CLIENT_CPU)


def guest_servers(upstream):
    command = lambda mode: [program("guest"), mode, "127.0.0.1:{port}", f"127.0.0.1:{upstream.port}"]
    return [Server("guests", command("guest"), "/"), Server("tokio", command("tokio"), "/")]


def peers():
    binary, go = BENCH / "peers/target/release/peers", BENCH / "peers-go/peers"
    python = ROOT / "target/socketify/bin/python"
    found = []
    for what, path in (("hyper, axum and others", binary), ("fasthttp", go), ("socketify", ROOT / "target/socketify/ready")):
        if not path.exists():
            leave_out(f"{what}, not built")
    if binary.exists():
        names = ["hyper", "axum", "actix-web", "ntex", "xitca-web", "may_minihttp"]
        found += [Server(name, [str(binary), name, "127.0.0.1:{port}"]) for name in names]
    if go.exists():
        found.append(Server("fasthttp", [str(go), "127.0.0.1:{port}"]))
    if (ROOT / "target/socketify/ready").exists():
        found.append(Server("socketify", [str(python), str(BENCH / "peers-python/main.py"), "{port}"]))
    return found + installed(nginx("/json"), haproxy(), h2o("/hello.json"))


def installed(*servers):
    """Those of which the program is here."""
    for server in servers:
        if not shutil.which(server.command[0]):
            leave_out(f"{server.name}, which is not installed")
    return [server for server in servers if shutil.which(server.command[0])]


def nginx(path, root=SITE):
    return Server("nginx", ["nginx", "-c", "@conf/nginx.conf"], path, root=root)


def haproxy():
    return Server("haproxy", ["haproxy", "-f", "@conf/haproxy.cfg"])


def h2o(path):
    return Server("h2o", ["h2o", "-c", "@conf/h2o.conf"], path)


def only(servers, options):
    """The requested servers, and always the floor, with which the others are compared."""
    wanted = options.only.split(",") if options.only else None
    return [server for server in servers if not wanted or server.name in wanted or server.name.startswith("floor")]


def machine():
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return f"{model[1] if model else platform.machine()}, {len(CPUS)} CPUs, Linux {platform.release().split('-')[0]}, tcp {congestion}"
