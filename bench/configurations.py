"""Compares the responses of nginx with those of flatout, for each nginx configuration of a folder.

Each configuration is made to run in a folder of its own (`runnable.py`), with stand-ins for its applications (`stand_ins.py`). nginx serves it
on one address of the loopback device, flatout on another one with the site file of `flatout import`, and `flatout import --check` sends the
same requests to both. What nginx itself does not start is left out, with the reason; directives that it does not know are removed.
"""

import argparse, collections, concurrent.futures, json, os, queue, re, shutil, socket, subprocess, sys, tempfile, time
from pathlib import Path

import runnable
import stand_ins

MODULES = {
    "more_": "ngx_http_headers_more_filter_module.so", "fancyindex": "ngx_http_fancyindex_module.so", "dav_ext": "ngx_http_dav_ext_module.so",
    "subs_filter": "ngx_http_subs_filter_module.so", "echo": "ngx_http_echo_module.so",
}
MODULES_AT = "/usr/lib/nginx/modules"
REPAIRS_MAX = 30
KINDS_MAX = 40
STARTING_TIME_S = 15


def certificate(folder):
    key, cert = f"{folder}/key.pem", f"{folder}/cert.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -subj /CN=example.test -addext subjectAltName=DNS:example.test,DNS:*.example.test"
    subprocess.run([*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    os.chmod(key, 0o600)
    return cert, key


def can_bind_low():
    with socket.socket() as s:
        try:
            s.bind(("127.99.99.99", 81))
            return True
        except OSError:
            return False


def without(tree, name):
    return [(words, None if inner is None else without(inner, name)) for words, inner in tree if words[0] != name]


class Run:
    def __init__(self, options, source, number, folder):
        self.options, self.source, self.number, self.folder = options, source, number, folder
        self.old, self.new = f"127.{100 + number}.0.2", f"127.{100 + number}.0.3"
        self.processes = []

    def result(self):
        out = {"source": str(self.source.relative_to(self.options.folder)), "state": "skipped", "why": "", "unserved": [], "requests": 0, "on_purpose": 0, "differences": []}
        try:
            self.compare(out)
        except runnable.Unfit as unfit:
            out["why"] = str(unfit)
        except RecursionError:
            out["why"] = "nested too deeply"
        finally:
            self.close()
        return out

    def start(self, command, name, ports, host):
        log = open(self.folder / f"{name}.log", "wb")
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self.processes.append(process)
        deadline = time.monotonic() + STARTING_TIME_S
        for port in ports:
            while True:
                try:
                    socket.create_connection((host, port), 1).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:].strip() or "not listening"
                    time.sleep(0.05)
        return None

    def repaired(self, ready):
        """Writes a file that this nginx accepts, without directives that it does not know."""
        modules = []
        for _ in range(REPAIRS_MAX):
            file = self.folder / "nginx.conf"
            file.write_text(ready.text(self.old, modules), errors="surrogateescape")
            got = subprocess.run([self.options.nginx, "-t", "-p", str(self.folder), "-c", str(file), "-e", f"{self.folder}/logs/error.log"], capture_output=True, text=True, errors="replace")
            if got.returncode == 0:
                return modules
            emergency = next((line for line in got.stderr.splitlines() if "[emerg]" in line), got.stderr[-300:])
            emergency = re.sub(r"^.*?\[emerg\] ?(\d+#\d+: )?", "", emergency)
            variable = re.match(r'unknown "(\w+)" variable', emergency)
            if variable:
                ready.define(variable.group(1))
                continue
            unknown = re.match(r'unknown directive "([^"]+)"', emergency)
            if not unknown:
                raise runnable.Unfit(re.sub(r" in /\S+", "", emergency))
            name = unknown.group(1)
            module = next((file for start, file in MODULES.items() if name.startswith(start)), None)
            if module and f"{MODULES_AT}/{module}" not in modules and Path(MODULES_AT, module).exists():
                modules.append(f"{MODULES_AT}/{module}")
                continue
            ready.notes.append(f"without {name}")
            ready.tree = without(ready.tree, name)
        raise runnable.Unfit("too many unknown directives")

    def compare(self, out):
        options = self.options
        ready = runnable.Prepared(self.source, options.folder, self.folder, self.number, options.certificate, options.keeps_ports)
        out["notes"] = ready.notes
        modules = self.repaired(ready)
        new = self.folder / "new.conf"
        new.write_text(ready.text(self.new, modules), errors="surrogateescape")
        self.stand_ins = stand_ins.StandIns(options.certificate)
        for address, (protocol, name) in ready.applications.items():
            self.stand_ins.listen(protocol, name, address)
        ports = {port: is_tls for port, (is_tls, is_proxied) in ready.listeners.items()}
        failure = self.start([options.nginx, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), "-e", f"{self.folder}/logs/error.log", "-g", "daemon off;"], "nginx", ports, self.old)
        if failure:
            raise runnable.Unfit(f"nginx did not start: {failure[-200:]}")
        imported = subprocess.run([options.flatout, "import", str(new)], capture_output=True, text=True, errors="replace")
        site = self.folder / "site.kdl"
        site.write_text(imported.stdout)
        out["unserved"] = [line.removeprefix("//   ") for line in re.findall(r"(?m)^//   .*", imported.stdout.split("\n\n")[0])] if "NOT SERVED" in imported.stdout else []
        out["state"] = "not started"
        if imported.returncode:
            out["why"] = f"import: {imported.stderr[-600:]}"
            return
        checked = subprocess.run([options.flatout, "check", str(site)], capture_output=True, text=True, errors="replace")
        if checked.returncode:
            out["why"] = f"check: {checked.stderr[-600:] or checked.stdout[-600:]}"
            return
        failure = self.start([options.flatout, "serve", "-c", str(site)], "flatout", ports, self.new)
        if failure:
            out["why"] = f"serve: {failure[-900:]}"
            return
        out["state"] = "compared"
        for port, is_tls in ports.items():
            if ready.listeners[port][1]:
                continue
            usual = 443 if is_tls else 80
            suffix = f":{port}"
            scheme = "https" if is_tls else "http"
            got = subprocess.run(
                [options.flatout, "import", "--check", f"{scheme}://{self.old}{suffix}", f"{scheme}://{self.new}{suffix}", "-c", str(self.folder / "nginx.conf"), "-c", str(site), "--requests", str(options.requests), "--host", "example.test" if port == usual else f"example.test:{port}"],
                capture_output=True, text=True, errors="replace", timeout=400,
            )
            count = re.search(r"(?m)^(\d+) requests: ", got.stdout)
            if not count:
                out["differences"].append([f"{scheme} port {port}", [["check", "", got.stderr[-300:]]]])
                continue
            out["requests"] += int(count.group(1))
            out["on_purpose"] += sum(int(number) for number in re.findall(r"(?m)^(\d+) differ on purpose", got.stdout))
            now = None
            for line in got.stdout.splitlines():
                if match := re.match(r"  (\S+)\s+(.*)  →  (.*)$", line):
                    if now is not None:
                        now[1].append(list(match.groups()))
                elif re.match(r"[A-Z]+ http://", line):
                    now = [f"{line.strip()}  [port {port}]", []]
                    out["differences"].append(now)

    def close(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if hasattr(self, "stand_ins"):
            self.stand_ins.close()


def kind(what):
    """What two differences have in common."""
    def general(text):
        for pattern, name in [
            (r"\b[0-9a-f]{16}\b|line \d+", "…"), (r"127\.\d+\.\d+\.\d+", "ADDRESS"), (r"\w{3}, \d\d \w{3} \d{4} [\d:]+ GMT", "DATE"),
            (r"/\S*/\d{4}/roots", "ROOT"), (r"bytes [\d-]+/\d+", "bytes N"),
        ]:
            text = re.sub(pattern, name, text)
        return text[:90]

    name, one, two = what
    if name == "body":
        one, two = re.sub(r"\d+ bytes", "N bytes", general(one)), re.sub(r"\d+ bytes", "N bytes", general(two))
        return f"body: {one}  →  {two}"
    return f"{name}: {general(one)}  →  {general(two)}"


def cell(text):
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace(str(Path.home()), "~")


def report(results, options):
    """The results as text of Markdown."""
    lines = ["## Configurations of nginx, answer by answer", ""]
    compared = [out for out in results if out["state"] == "compared"]
    fit = [out for out in results if out["state"] != "skipped"]
    equal = [out for out in compared if not out["differences"]]
    lines += [
        f"`./x configurations FOLDER --requests {options.requests}`: {len(results)} files with servers, {sum(out['state'] == 'skipped' for out in results)} of which "
        f"nginx does not start here. flatout starts with {len(compared)} of the other {len(fit)}; {len(equal)} have no difference in up to {options.requests} requests to each of "
        f"their ports, {sum(out['requests'] for out in compared)} in all. {sum(out.get('on_purpose', 0) for out in compared)} responses differ on purpose. "
        f"{sum(bool(out['unserved']) for out in compared)} have places that respond 501.",
        "",
        "| source | files | nginx starts | flatout starts | without difference | requests | differences |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    sources = collections.defaultdict(list)
    for out in results:
        sources[out["source"].split("/")[0]].append(out)
    for source, outs in sorted(sources.items()):
        own = [out for out in outs if out["state"] == "compared"]
        figures = [len(outs), sum(out["state"] != "skipped" for out in outs), len(own), sum(not out["differences"] for out in own)]
        figures += [sum(out["requests"] for out in own), sum(len(out["differences"]) for out in own)]
        lines.append(f"| {cell(source)} | {' | '.join(map(str, figures))} |")
    kinds, where = collections.Counter(), collections.defaultdict(set)
    for out in results:
        for _, parts in out["differences"]:
            for part in parts:
                kinds[kind(part)] += 1
                where[kind(part)].add(out["source"])
    differing = [f"| {count} | {len(where[name])} | {cell(name)} |" for name, count in kinds.most_common(KINDS_MAX)]
    reasons = collections.Counter(re.sub(r" '?/\S+", "", f"{out['state']}: {out['why']}")[:100] for out in results if out["state"] != "compared")
    left_out = [f"| {count} | {cell(reason)} |" for reason, count in reasons.most_common()]
    for head, ruler, rows in [("| responses | files | what differs: nginx → flatout |", "|---:|---:|---|", differing),
                              ("| files | why they are left out, or do not start |", "|---:|---|", left_out)]:
        if rows:
            lines += ["", head, ruler, *rows]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folder", type=Path, help="configurations, in folders with the files that they include")
    add("--only", default="", help="those whose path matches this expression")
    add("--sample", type=int, default=0, help="about so many of them")
    add("--requests", type=int, default=300, help="to each port")
    add("--jobs", type=int, default=2, help="so many at a time")
    add("--first", type=int, default=0, help="the number of the first job, so that two runs have different addresses")
    add("--keep", type=Path, help="a folder for the configurations as they run, logs and results")
    add("--results", type=Path, help="a file for the table")
    add("--flatout", default="target/release/flatout", help="the program")
    add("--nginx", default="nginx", help="the program")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.flatout = str(Path(options.flatout).resolve())
    base = Path(options.keep or tempfile.mkdtemp(prefix="flatout-configurations-")).resolve()
    base.mkdir(parents=True, exist_ok=True)
    os.chmod(base, 0o755)
    options.certificate = certificate(base)
    options.keeps_ports = can_bind_low()
    sources = []
    for path in sorted(options.folder.rglob("*")):
        if path.is_file() and re.search(options.only, str(path.relative_to(options.folder))):
            text = path.read_text(errors="replace")
            if re.search(r"(?m)^\s*(server|http)\s*\{|^\s*server\s*$|^\s*location\s.*\{", text):
                sources.append(path)
    if options.sample:
        sources = sources[:: max(1, len(sources) // options.sample)]
    numbers = queue.Queue()
    for number in range(options.first, options.first + options.jobs):
        numbers.put(number)

    def one(at):
        number = numbers.get()
        folder = base / f"{at:04}"
        if folder.exists():
            shutil.rmtree(folder)
        try:
            out = Run(options, sources[at], number, folder).result()
        except Exception as error:  # the harness itself
            out = {"source": str(sources[at].relative_to(options.folder)), "state": "harness", "why": repr(error), "unserved": [], "requests": 0, "on_purpose": 0, "differences": []}
        finally:
            numbers.put(number)
        out["folder"] = str(folder)
        print(f"{at:4} {out['state']:12} {out['requests']:5} {len(out['differences']):4} {len(out['unserved']):3} {out['source']} {out['why'][:150]!r}", flush=True)
        return out

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(one, range(len(sources))))
    (base / "results.json").write_text(json.dumps(results, indent=1))
    text = report(results, options)
    print(text)
    if options.results:
        options.results.write_text(text)
    sys.exit(any(out["state"] in ("not started", "harness") for out in results))


if __name__ == "__main__":
    main()
