"""What a configuration costs: a reload with ten thousand sites, and a request through ten conditions and a map of ten thousand entries."""

import json, re, signal, socket, subprocess, time
from pathlib import Path

from measure import FLATOUT, flatout_bench, measured, quartiles, running, table, told, turns
import children
from servers import CLIENT_CPU, SITE, Server, installed, only, pin
from smoke import sized

SITES = sized(10_000, smoke=100)
ENTRIES = sized(10_000, smoke=100)
CONDITIONS = 10
CONNECTIONS = 64

# A steady load while a server reloads.
RATE, RATE_CONNECTIONS = 1_000, 16
RELOAD_TIME_S = sized(60, smoke=20)


class Configured(Server):
    """A server whose configuration is written before it starts. `text` makes it, of the server and of a word that the first site says."""

    def __init__(self, name, command, text, file="configuration"):
        super().__init__(name, command, path="/")
        self.text, self.file = text, file

    def __enter__(self):
        if not self.folder.exists():
            self.renew()
        self.write("first")
        return super().__enter__()

    def write(self, word):
        (self.folder / self.file).write_text(self.text(self, word))

    def reload(self):
        self.process.send_signal(signal.SIGHUP)

    def says(self, host):
        """The response of a site, and its status."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as s:
            s.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            text = b"".join(iter(lambda: s.recv(1 << 16), b""))
        return text.rpartition(b"\r\n\r\n")[2].strip().decode()

    def own_bytes(self):
        """Memory, each page divided by the number of processes that have it."""
        sums = (re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M) for pid in self.pids())
        return sum(int(found[1]) for found in sums) * 1024


class Caddy(Configured):
    def reload(self):
        self.reloading = children.start(["caddy", "reload", "--adapter", "caddyfile", "--config", str(self.folder / self.file)],
                                        pin(CLIENT_CPU), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def name_of(number):
    return f"s{number}.example.org"


def root_of(number):
    """The folder of a site, with a file."""
    return SITE / "roots" / str(number)


def flatout_sites(server, word):
    site = lambda at: f'''site "{name_of(at)}" {{
    route "/" {{ respond 200 "{word if at == 0 else 'other'}"; }}
    route "/files" {{ files "{root_of(at)}"; }}
    route "^/[a-z]+/{at}$" match=regex {{ respond 404 "none"; }}
    route "/api" {{ proxy app; response-header set "X-Site" "{at}"; }}
}}
'''
    return f'listen "127.0.0.1:{server.port}"\nworkers 1\nupstream app {{ server "127.0.0.1:9"; }}\n' + "".join(map(site, range(SITES)))


def nginx_main(server, http):
    temporary = "".join(f"{kind}_temp_path {server.folder}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"worker_processes 1; daemon off; pid {server.folder}/nginx.pid; error_log stderr error; worker_rlimit_nofile 20000;\n" \
           f"events {{ worker_connections 9000; }}\nhttp {{ access_log off; keepalive_requests 1000000000; {temporary}\n{http}}}\n"


def nginx_sites(server, word):
    site = lambda at: f'''server {{ listen 127.0.0.1:{server.port} backlog=4096; server_name {name_of(at)};
    location / {{ return 200 "{word if at == 0 else 'other'}"; }}
    location /files/ {{ alias {root_of(at)}/; }}
    location ~ ^/[a-z]+/{at}$ {{ return 404 "none"; }}
    location /api {{ proxy_pass http://app; add_header X-Site {at}; }}
}}
'''.replace(" backlog=4096" if at else "\0", "")
    hash_of_names = "server_names_hash_max_size 65536; server_names_hash_bucket_size 64;\n"
    return nginx_main(server, hash_of_names + "upstream app { server 127.0.0.1:9; }\n" + "".join(map(site, range(SITES))))


def caddy_sites(server, word):
    site = lambda at: f'''http://{name_of(at)}:{server.port} {{
    bind 127.0.0.1
    handle_path /files* {{
        root * {root_of(at)}
        file_server
    }}
    @expression{at} path_regexp ^/[a-z]+/{at}$
    respond @expression{at} "none" 404
    handle /api* {{
        header X-Site {at}
        reverse_proxy 127.0.0.1:9
    }}
    respond "{word if at == 0 else 'other'}"
}}
'''
    return f"{{\n    admin unix/{server.folder}/admin\n    auto_https off\n}}\n" + "".join(map(site, range(SITES)))


def sites_servers():
    caddy = ["caddy", "run", "--adapter", "caddyfile", "--config", "{folder}/configuration"]
    return [Configured("flatout", [FLATOUT, "serve", "--config", "{folder}/site.kdl"], flatout_sites, "site.kdl"),
            *installed(Configured("nginx", ["nginx", "-c", "{folder}/configuration"], nginx_sites), Caddy("caddy", caddy, caddy_sites))]


class Load:
    """Requests for the first site at a steady rate, until it is left."""

    def __init__(self, server):
        command = [FLATOUT, "bench", "-t1", f"-c{RATE_CONNECTIONS}", "-R", str(RATE), f"-d{RELOAD_TIME_S}s", "--json",
                   "--max-errors", "1000000", "-H", f"Host: {name_of(0)}", server.url()]
        self.process = children.start(command, pin(CLIENT_CPU), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        return json.loads(self.process.communicate(timeout=30)[0])


def reload_once(server):
    """Changes one site, and waits until a new connection gets the new text."""
    word = f"word{time.monotonic_ns()}"
    server.write(word)
    load = Load(server)
    time.sleep(1)
    before, cpu, began, most = server.own_bytes(), server.cpu_ns(), time.monotonic(), 0
    server.reload()
    while server.says(name_of(0)) != word:
        most = max(most, server.own_bytes())
        if time.monotonic() - began > RELOAD_TIME_S / 2:
            raise RuntimeError("it still says the old text")
        time.sleep(0.02)
    took, cpu = time.monotonic() - began, server.cpu_ns() - cpu
    time.sleep(1)
    said = load.end()
    return {"requests": said["requests"], "took_s": took, "cpu_s": cpu / 1e9, "before_mib": before / 2**20, "most_mib": most / 2**20,
            "after_mib": server.own_bytes() / 2**20, "lost": sum(said["errors"].values()), "max_ms": said["latency_ns"]["max"] / 1e6,
            "p99_ms": said["latency_ns"]["p99"] / 1e6}


def case_sites(options):
    for at in range(SITES):
        root_of(at).mkdir(parents=True, exist_ok=True)
        (root_of(at) / "index.html").write_text(f"<title>{at}</title>\n")
    servers, starts = sites_servers(), {}
    for server in servers:
        began = time.monotonic()
        try:
            with server:
                assert server.says(name_of(SITES - 1)) == "other"
                starts[server.name] = time.monotonic() - began, server.own_bytes() / 2**20
        except RuntimeError as error:
            print(f"  {server.name}: {error}")
    with running(only(servers, options)) as started:
        runs = turns(started, options, reload_once)
    lines = [f"{SITES:,} sites, each a host name with a text, a folder of its own, an expression and a proxied path, in one file. One text is changed and the server reloads, with a",
             f"load of {RATE:,} requests a second for that site; until a new connection gets the new text. Memory is proportional (PSS), of all its",
             "processes; the CPU time includes the load's.", "",
             "| server | start, s | memory then, MiB | reload, s (quartiles) | CPU s | memory before, most, after, MiB | lost | p99 ms | slowest ms |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for name, its in runs.items():
        of = lambda key, digits=1: told(quartiles([run[key] for run in its]), digits)
        memory = ", ".join(f"{quartiles([run[key] for run in its])[1]:,.0f}" for key in ("before_mib", "most_mib", "after_mib"))
        started_s, started_mib = starts.get(name, (float("nan"), float("nan")))
        lines.append(f"| {name} | {started_s:.2f} | {started_mib:,.0f} | {of('took_s', 2)} | {of('cpu_s', 2)} | {memory} | "
                     f"{sum(run['lost'] for run in its):,} | {of('p99_ms')} | {of('max_ms')} |")
    return runs, lines


def flatout_conditions(plain):
    def text(server, _):
        entries = "".join(f'    case "k{at}" "v{at}"\n' for at in range(ENTRIES))
        whens = "".join(f'''        when "header['x-{at}'] == 'yes'" {{ response-header set "X-When" "{at}"; }}\n''' for at in range(CONDITIONS))
        rules = "" if plain else f'        response-header set "X-Value" "$value"\n{whens}'
        table = "" if plain else f'map value "$arg_key" {{\n{entries}}}\n'
        return f'listen "127.0.0.1:{server.port}"\nworkers 1\n{table}site "*" {{\n    route "/" {{\n        respond 200 "ok"\n{rules}    }}\n}}\n'
    return text


def nginx_conditions(plain):
    def text(server, _):
        entries = "".join(f"    k{at} v{at};\n" for at in range(ENTRIES))
        ifs = "".join(f'        if ($http_x_{at} = yes) {{ set $when {at}; }}\n' for at in range(CONDITIONS))
        table = "" if plain else f"map_hash_max_size 65536;\nmap $arg_key $value {{\n{entries}}}\n"
        rules = "" if plain else f'        set $when "";\n{ifs}        add_header X-Value $value;\n        add_header X-When $when;\n'
        return nginx_main(server, f'{table}server {{ listen 127.0.0.1:{server.port} backlog=4096;\n    location / {{\n{rules}        return 200 ok;\n    }}\n}}\n')
    return text


def case_conditions(options):
    kinds = [("flatout", [FLATOUT, "serve", "--config", "{folder}/site.kdl"], "site.kdl", flatout_conditions),
             ("nginx", ["nginx", "-c", "{folder}/configuration"], "configuration", nginx_conditions)]
    servers = []
    for name, command, file, text in kinds:
        for plain in (True, False):
            server = Configured(f"{name}{', no rules' if plain else ', rules'}", command, text(plain), file)
            server.path = f"/?key=k{ENTRIES - 1}"
            servers += installed(server)
    with running(only(servers, options)) as started:
        runs = measured(started, CONNECTIONS, options)
    names = list(runs)
    lines = [f"A response of two bytes, with a field of a map of {ENTRIES:,} entries and {CONDITIONS} conditions on fields that the request does not have; and without",
             "both.", "", *table(runs, names[0])]
    for name in ("flatout", "nginx"):
        plain, rules = f"{name}, no rules", f"{name}, rules"
        if plain in runs and rules in runs:
            more = [run["cpu_us"] - base["cpu_us"] for run, base in zip(runs[rules], runs[plain])]
            lines += ["", f"{name}: {told(quartiles(more), 3)} µs more for the rules."]
    return runs, lines
