"""The case prerender: pages for crawlers, drawn by the same chromium, by flatout and by npm's `prerender`."""

import json, os, shutil, statistics, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import children
from parts import main, table
from servers import CLIENT_CPU, ROOT, SERVER_CPU, free_port, program
from smoke import IS_SMOKE, failed, leave_out, sized

FLATOUT = program("flatout")

# The page is the demo's application, in plain JavaScript: the same for both.
SOURCE = ROOT / "demo/prerender"
AGENT = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
VERSION = "5.21.6"
MODULES = ROOT / "target/bench-prerender"
CHROMIUM = "/usr/bin/chromium"

ARTICLES = sized(120, smoke=4)
HITS = sized(300, smoke=5)
PAGES_AT_ONCE = 2
MEMORY_PAGES = 4
SAMPLES = 20

# npm's prerender with what it needs to do the same: scripts are removed, and HTML is kept in memory.
SCRIPT = """
const prerender = require('prerender');
const kept = new Map();
const server = prerender({ chromeLocation: process.env.CHROMIUM, port: Number(process.env.PORT), browserDebuggingPort: Number(process.env.DEBUG),
  logRequests: false, chromeFlags: ['--headless', '--disable-gpu', '--hide-scrollbars', '--no-sandbox', `--remote-debugging-port=${process.env.DEBUG}`,
  `--user-data-dir=${process.env.DATA}`] });
server.use({
  requestReceived: (req, res, next) => kept.has(req.prerender.url) ? res.send(200, kept.get(req.prerender.url)) : next(),
  beforeSend: (req, res, next) => { if (req.prerender.statusCode === 200 && req.prerender.content) kept.set(req.prerender.url, req.prerender.content); next(); },
});
server.use(prerender.removeScriptTags());
server.start();
"""


def tree(pid):
    """A process and all below it."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            pass
    return found


def memory_bytes(pid):
    """Proportional memory of a process and all below it."""
    total = 0
    for one in tree(pid):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
        except OSError:
            pass
    return total


def descriptors(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


class Renderer:
    """A server that renders the pages of an application in a folder. `url` makes the URL of a page."""

    def __init__(self, name, pages):
        self.name, self.pages = name, pages

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp())
        app = self.folder / "app"
        (app / "api").mkdir(parents=True)
        page = (SOURCE / "index.html").read_text()
        lines = [line for line in page.splitlines(True) if "/lib/" not in line]
        (app / "index.html").write_text("".join(lines))
        shutil.copyfile(SOURCE / "plain.js", app / "app.js")
        for number in range(ARTICLES + 1):
            (app / f"api/{number}.json").write_text(json.dumps({"title": f"Article {number}", "text": f"What article {number} is about."}))
        self.processes, self.port = [], free_port()
        self.log = open(self.folder / "log", "wb")
        command = [FLATOUT, "serve", str(app), "--spa", "--port", str(self.port), "--workers", "1"]
        if self.name == "flatout":
            command += ["--prerender", "--prerender-pages", str(self.pages), "--prerender-client-budget", "off", "--prerender-page-time", "30s",
                        "--prerender-queue", "1000"]
        self.start(command)
        if self.name != "flatout":
            self.peer = free_port()
            data = {"CHROMIUM": CHROMIUM, "PORT": str(self.peer), "DEBUG": str(free_port()), "DATA": str(self.folder / "data"), "NODE_PATH": str(MODULES / "node_modules")}
            self.start(["node", "-e", SCRIPT], env={**os.environ, **data})
        deadline = time.time() + 60
        while "What article 0" not in self.get(0)[0]:
            if time.time() > deadline:
                raise RuntimeError(f"{self.name} renders nothing:\n{(self.folder / 'log').read_text()[-1000:]}")
            time.sleep(0.2)
        return self

    def start(self, command, **more):
        self.processes.append(children.start(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=self.folder, **more))

    def url(self, number, query=""):
        page = f"http://127.0.0.1:{self.port}/articles/{number}{query}"
        return page if self.name == "flatout" else f"http://127.0.0.1:{self.peer}/render?url={page.replace('?', '%3F')}"

    def get(self, number, query=""):
        """The body of a page, and how long it took in milliseconds."""
        began = time.perf_counter()
        command = ["curl", "-s", "--max-time", "120", "-A", AGENT, "-H", "Accept: text/html,*/*;q=0.8", "-w", "\nX-Prerender: %header{x-prerender}", self.url(number, query)]
        out = subprocess.run(command, capture_output=True).stdout.decode("utf-8", "replace")
        return out, (time.perf_counter() - began) * 1e3

    def render(self, number, query=""):
        body, ms = self.get(number, query)
        if f"What article {number} is about." not in body:
            raise RuntimeError(f"{self.name}: article {number} was not rendered: {body[-300:]}")
        return ms

    def memory(self):
        return sum(memory_bytes(process.pid) for process in self.processes)

    def __exit__(self, *_):
        for process in reversed(self.processes):
            children.stop(process)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def names(options):
    found = ["flatout", "npm prerender"]
    if not (MODULES / "node_modules/prerender").exists() and not IS_SMOKE and shutil.which("npm"):
        MODULES.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--silent", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(MODULES), f"prerender@{VERSION}"]
        subprocess.run(command, stdin=subprocess.DEVNULL)
    if not (MODULES / "node_modules/prerender").exists():
        leave_out("npm's prerender, which is not installed")
        found.remove("npm prerender")
    return [name for name in found if not options.only or name in options.only.split(",")]


def percentile(values, share):
    return sorted(values)[int((len(values) - 1) * share)]


def renders(options):
    """First renders, and pages that are stored, in turns."""
    runs = {}
    for at in range(options.rounds):
        order = names(options)
        for name in order if at % 2 == 0 else order[::-1]:
            try:
                with Renderer(name, PAGES_AT_ONCE) as server, ThreadPoolExecutor(PAGES_AT_ONCE) as threads:
                    began = time.time()
                    first = list(threads.map(server.render, range(1, ARTICLES + 1)))
                    per_minute = ARTICLES / (time.time() - began) * 60
                    hits = [server.render(1 + at % ARTICLES) for at in range(HITS)]
            except RuntimeError as error:
                failed(name, error)
                continue
            figures = {"per_minute": per_minute, "p50": percentile(first, 0.5), "p99": percentile(first, 0.99)}
            runs.setdefault(name, []).append({**figures, "hit_p50": percentile(hits, 0.5), "hit_p99": percentile(hits, 0.99)})
            print(f"  {name}: {per_minute:,.0f} a minute", file=sys.stderr)
    middle = lambda name, key: statistics.median(run[key] for run in runs[name])
    row = lambda name: [name, f"{middle(name, 'per_minute'):,.0f}", *(f"{middle(name, key):,.1f}" for key in ("p50", "p99", "hit_p50", "hit_p99"))]
    lines = ["### Renders", "", f"{ARTICLES} pages, {PAGES_AT_ONCE} at a time, then {HITS} of them again, by curl, whose start is included. npm's prerender has a plugin that keeps HTML in memory.", ""]
    heads = ["server", "renders a minute", "first p50 ms", "first p99 ms", "hit p50 ms", "hit p99 ms"]
    return runs, lines + table(heads, [row(name) for name in runs])


def memory(options):
    """The highest memory with several pages at a time."""
    runs = {}
    for name in names(options):
        try:
            with Renderer(name, MEMORY_PAGES) as server, ThreadPoolExecutor(MEMORY_PAGES) as threads:
                found, work = [server.memory()], [threads.submit(server.render, at) for at in range(1, ARTICLES + 1)]
                while not all(one.done() for one in work):
                    found.append(server.memory())
                    time.sleep(0.1)
                for one in work:
                    one.result()
        except RuntimeError as error:
            failed(name, error)
            continue
        runs[name] = {"highest": max(found), "median": statistics.median(found)}
    row = lambda name: [name, *(f"{runs[name][key] / (1 << 20):,.0f}" for key in ("median", "highest"))]
    lines = ["### Memory", "", f"Proportional memory (PSS) of the server and its browser, with {MEMORY_PAGES} pages at a time.", ""]
    return runs, lines + table(["server", "median MiB", "highest MiB"], [row(name) for name in runs])


def soak(options):
    """Many renders: neither memory nor descriptors nor processes of flatout grow."""
    total, samples = options.renders, []
    with Renderer("flatout", PAGES_AT_ONCE) as server, ThreadPoolExecutor(PAGES_AT_ONCE) as threads:
        pid = server.processes[0].pid
        step = max(total // SAMPLES, 1)
        for begin in range(0, total, step):
            # Another query is another page in the cache, which is drawn like the first one.
            list(threads.map(lambda at: server.render(1 + at % ARTICLES, f"?{at}"), range(begin, min(begin + step, total))))
            own = [line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss_Anon:")]
            samples.append({"renders": min(begin + step, total), "server": int(own[0].split()[1]) << 10, "all": server.memory(),
                            "descriptors": descriptors(pid), "processes": len(tree(pid))})
            found = samples[-1]
            mib = lambda key: f"{found[key] / (1 << 20):,.1f} MiB"
            print(f"  {found['renders']:,} renders: {mib('server')} in the server, {mib('all')} with its browser, {found['descriptors']} descriptors, "
                  f"{found['processes']} processes", file=sys.stderr)
    half = len(samples) // 2
    growth = lambda key: statistics.median(one[key] for one in samples[half:]) - statistics.median(one[key] for one in samples[:max(half, 1)])
    mib = lambda count: f"{count / (1 << 20):,.1f}"
    rows = [[f"{one['renders']:,}", mib(one["server"]), mib(one["all"]), str(one["descriptors"]), str(one["processes"])] for one in samples[:: max(len(samples) // 10, 1)]]
    lines = ["### Many renders", "", f"{total:,} renders of flatout. The second half takes {mib(growth('server'))} MiB more than the first in the server itself, whose cache fills, "
             f"{mib(growth('all'))} MiB with its browser, {growth('descriptors'):+.0f} descriptors and {growth('processes'):+.0f} processes.", ""]
    if not IS_SMOKE and growth("descriptors") > 8:
        raise RuntimeError(f"descriptors grow: {samples}")
    return samples, lines + table(["renders", "server MiB", "with browser MiB", "descriptors", "processes"], rows)


def hits(options):
    """A stored page that was rendered, beside the same bytes in an ordinary cache: flatout, on one CPU, the load on another."""
    runs, header = {}, f"User-Agent: {AGENT}"
    with Renderer("flatout", PAGES_AT_ONCE) as server:
        server.render(1)
        port = free_port()
        server.start([FLATOUT, "serve", "--to", f"http://127.0.0.1:{server.port}", "--cache", "1d", "--port", str(port), "--workers", "1"])
        caches = {"rendered pages": (server.processes[0].pid, server.url(1)), "ordinary cache": (server.processes[1].pid, f"http://127.0.0.1:{port}/articles/1")}
        for pid, _ in caches.values():
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {SERVER_CPU})
        for at in range(max(options.rounds, 5) if not IS_SMOKE else 1):
            for name in list(caches) if at % 2 == 0 else list(caches)[::-1]:
                pid, url = caches[name]
                command = [FLATOUT, "bench", "--json", "-c", "16", "-d", f"{options.seconds}s", "--pid", str(pid), "--expect-status", "200", "-H", header, url]
                found = subprocess.run(command, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {CLIENT_CPU}))
                result = json.loads(found.stdout)
                cpu = result["server_cpu_us_per_request"]
                runs.setdefault(name, []).append({"per_s": result["requests_per_s"], "us": cpu["user"] + cpu["kernel"]})
    ratios = sorted(one["us"] / other["us"] for one, other in zip(runs["rendered pages"], runs["ordinary cache"]))
    row = lambda name: [name, *(f"{statistics.median(run[key] for run in runs[name]):{form}}" for key, form in (("per_s", ",.0f"), ("us", ".2f")))]
    lines = ["### Hits", "", "A page in the cache, requested by a crawler: once as it was rendered, and once as the same bytes in the cache of a reverse proxy. CPU time "
             f"of rendered pages is {statistics.median(ratios):.2f} times that ({ratios[0]:.2f} to {ratios[-1]:.2f}); finding out that it is a crawler is part of it.", ""]
    return runs, lines + table(["cache", "requests/s", "CPU us a request"], [row(name) for name in runs])


PARTS = {"renders": renders, "hits": hits, "memory": memory, "soak": soak}

if __name__ == "__main__":
    flags = {"--renders": {"type": int, "default": sized(10_000, smoke=8), "help": "renders of the part soak"}}
    main("prerender", "Pages for crawlers", PARTS, __doc__, rounds=3, seconds=1, flags=flags)
