"""A configuration of nginx that is made to run in a folder of its own: with listeners on one address, stand-ins for applications, files and certificates."""

import os, re, shutil
from pathlib import Path

BLOCKS_OF_HTTP = {"server", "upstream", "map", "geo", "split_clients", "limit_req_zone", "limit_conn_zone", "log_format", "proxy_cache_path", "fastcgi_cache_path"}

PASSES = {"proxy_pass": "http", "fastcgi_pass": "fastcgi", "uwsgi_pass": "uwsgi", "scgi_pass": "scgi", "grpc_pass": "grpc"}

# Directives without an effect on responses, or with one that a test run cannot have.
DROPPED = {
    "user", "pid", "worker_processes", "worker_rlimit_nofile", "worker_cpu_affinity", "worker_priority", "daemon", "master_process", "load_module",
    "error_log", "lock_file", "timer_resolution", "pcre_jit", "env", "thread_pool", "stream", "mail", "events", "google_perftools_profiles",
    "ssl_dhparam", "ssl_stapling", "ssl_stapling_verify", "ssl_stapling_file", "ssl_session_ticket_key", "ssl_password_file", "ssl_ecdh_curve", "ssl_ciphers",
    "ssl_engine", "aio", "client_body_temp_path", "proxy_temp_path", "fastcgi_temp_path", "uwsgi_temp_path", "scgi_temp_path", "ssl_crl",
    "http2", "http3", "quic_retry", "quic_gso", "ssl", "http2_push_preload",
}

CERTIFICATES = {
    "ssl_certificate", "ssl_trusted_certificate", "ssl_client_certificate", "proxy_ssl_certificate", "proxy_ssl_trusted_certificate",
    "grpc_ssl_certificate", "grpc_ssl_trusted_certificate", "uwsgi_ssl_certificate", "uwsgi_ssl_trusted_certificate",
}
KEYS = {"ssl_certificate_key", "proxy_ssl_certificate_key", "grpc_ssl_certificate_key", "uwsgi_ssl_certificate_key"}

# The files of each root.
FILES = [
    "index.html", "index.htm", "index.php", "a.php", "file.txt", "app.js", "style.css", "img.png", "img.svg", "data.json", "robots.txt", "favicon.ico",
    "50x.html", "404.html", "error.html", "sub/index.html", "sub/a.php", "sub/style.css", "admin/index.html", "empty/.keep", ".htaccess", ".git/config",
    ".well-known/acme-challenge/token", "static/app.js", "assets/style.css", "large.css", "sitemap.xml", "backup.sql", "notes.md",
]

ENDINGS = re.compile(r"\.(html?|php|txt|ico|png|jpe?g|gif|svg|json|xml|js|css|pdf|webmanifest)$")

ENDINGS_OF_SAMPLES = ["", ".sample", ".template"]

TOKEN = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[{};]|(?:\\.|\$\{[^}\s]*\}|[^\s{};\\])(?:\\.|\$\{[^}\s]*\}|[^\s{;\\}]|\}(?=[^\s;]))*""", re.S)


class Unfit(Exception):
    """Why a configuration cannot be run here."""


def parse(text):
    """[(words, None or the directives inside)]; words keep their quotes."""
    tokens = [match.group(0) for match in TOKEN.finditer(text)]
    at = 0

    def block():
        nonlocal at
        found, now = [], []
        while at < len(tokens):
            token = tokens[at]
            at += 1
            if token.startswith("#"):
                continue
            if token == ";":
                if now:
                    found.append((now, None))
                now = []
            elif token == "{":
                if now and now[0].endswith("_by_lua_block"):
                    raise Unfit("Lua")
                found.append((now, block()))
                now = []
            elif token == "}":
                return found
            else:
                now.append(token)
        return found

    found = block()
    while at < len(tokens):
        found += block()
    return found


def written(tree, depth=0):
    pad = "    " * depth
    lines = []
    for words, inner in tree:
        if inner is None:
            lines.append(f"{pad}{' '.join(words)};\n")
        else:
            lines.append(f"{pad}{' '.join(words)} {{\n{written(inner, depth + 1)}{pad}}}\n")
    return "".join(lines)


def plain(word):
    return re.sub(r"\\(.)", r"\1", word[1:-1]) if word[:1] in "\"'" and len(word) > 1 and word[-1] == word[0] else word


def filled(text):
    """Templates: placeholders get a value, and lines of their languages are removed."""
    text = re.sub(r"(?m)^\s*(\{%.*?%\}|<%[^=].*?%>|\{\{-?\s*(if|else|end|range|with|define|template|block|/\*).*)\s*$", "", text)

    def value(match):
        name = match.group(1).upper()
        if ":-" in name:
            return match.group(1).split(":-", 1)[1]
        for pattern, value in [
            (r"PORT", "8080"), (r"SIZE|BODY|UPLOAD|MEMORY", "10m"), (r"TIMEOUT|EXPIRE|TIME", "60s"),
            (r"HOST|DOMAIN|FQDN|SERVER_NAME|HOSTNAME|SUBDOMAIN", "example.test"), (r"ROOT|DIR|PATH|HOME|FOLDER", "/srv/www"),
            (r"UPSTREAM|BACKEND|SERVER|APP|SERVICE", "app:8080"), (r"RESOLVER|DNS|IP", "127.0.0.1"), (r"PROCESSES|CONNECTIONS|NUM|COUNT|MAX|LIMIT", "16"),
        ]:
            if re.search(pattern, name):
                return value
        return "value"

    text = re.sub(r"\{\{-?\s*([^{}]*?)\s*-?\}\}", value, text)
    text = re.sub(r"<%=\s*(.*?)\s*%>", value, text)
    text = re.sub(r"\$\{([A-Z][A-Z0-9_]*(?::-[^}]*)?)\}", value, text)
    return re.sub(r"\$([A-Z][A-Z0-9_]+)\b", value, text)


class Prepared:
    """`source`: the file; `collection`: where files that it includes may be; `folder`: where it runs; `number`: of its addresses."""

    def __init__(self, source, collection, folder, number, certificate, keeps_ports):
        self.source, self.collection, self.folder, self.number = Path(source), collection, Path(folder), number
        self.certificate, self.keeps_ports = certificate, keeps_ports
        self.notes, self.roots, self.files, self.moves, self.current = [], {}, {}, [], ""
        self.listeners, self.applications, self.names = {}, {}, {}
        self.folder.mkdir(parents=True)
        for name in ["logs", "cache", "sockets", "roots", "body"]:
            (self.folder / name).mkdir()
        self.tree = self.whole(self.read(self.source, 0))
        self.variables = self.hosts_of_variables()
        self.ports = sorted({8080, 80, 443} | {int(plain(words[2])) for words, _ in self.all() if words[0] == "set" and len(words) == 3 and plain(words[2]).isdigit() and 0 < int(plain(words[2])) < 65536})
        self.protocols = self.protocols_of_upstreams()
        http = next(inner for words, inner in self.tree if words[0] == "http")
        if not any(words[0] == "root" for words, _ in http):
            http.append((["root", "/usr/share/nginx/html"], None))
        self.tree = self.block(self.tree, ["main"])
        if not self.listeners:
            raise Unfit("no listener")
        self.make_files()

    # ---- reading ----------------------------------------------------------------------------------------------------

    def read(self, path, depth):
        if depth > 8:
            raise Unfit("includes without an end")
        try:
            text = path.read_text(errors="surrogateescape")
        except OSError as error:
            raise Unfit(str(error)) from error
        if path == self.source or str(path).startswith(str(self.collection)):
            text = filled(text)
        found = []
        for words, inner in parse(text):
            found += self.with_includes(words, inner, path, depth)
        return found

    def with_includes(self, words, inner, path, depth):
        if not words:
            return []
        if words[0] == "include" and len(words) == 2:
            included = self.included(plain(words[1]), path)
            if not included:
                self.notes.append(f"without include {plain(words[1])}")
            return [it for file in included for it in self.read(file, depth + 1)]
        if inner is None:
            return [(words, None)]
        return [(words, [it for words, inner in inner for it in self.with_includes(words, inner, path, depth)])]

    def included(self, name, path):
        """The files of an `include`: beside the including file or above it, elsewhere in the collection, or of the system."""
        relative = name.lstrip("/")
        places = [path.parent, *[parent for parent in path.parents if str(parent).startswith(str(self.collection)) and parent != self.collection]]
        parts = relative.split("/")
        for place in places:
            for start in range(len(parts)):
                found = sorted(it for it in place.glob("/".join(parts[start:])) if it.is_file() and it != self.source)
                if found:
                    return found
        if "*" not in name:
            if Path("/etc/nginx", Path(name).name).is_file():
                return [Path("/etc/nginx", Path(name).name)]
            if Path("/etc/nginx/snippets", Path(name).name).is_file():
                return [Path("/etc/nginx/snippets", Path(name).name)]
            found = [it for ending in ENDINGS_OF_SAMPLES for it in sorted(self.collection.rglob(Path(name).name + ending))]
            # Of the same folder name, then from the nearest folder.
            likeness = lambda it: (it.parent.name == Path(name).parent.name, len(os.path.commonprefix([str(it), str(path)])))
            return sorted(found, key=likeness)[-1:]
        return []

    def whole(self, tree):
        """With `http`, if it is a file that is included there."""
        names = {words[0] for words, _ in tree if words}
        if "http" in names:
            return tree
        if "location" in names and "server" not in names:
            tree = [(["server"], [(["listen", "80"], None), (["server_name", "example.test"], None), *tree])]
        elif "server" not in names:
            raise Unfit("no server")
        kinds = parse(Path("/etc/nginx/mime.types").read_text())
        return [(["http"], [*kinds, (["default_type", "application/octet-stream"], None), *tree])]

    def all(self, tree=None):
        for words, inner in self.tree if tree is None else tree:
            yield words, inner
            if inner is not None:
                yield from self.all(inner)

    # ---- applications -----------------------------------------------------------------------------------------------

    def hosts_of_variables(self):
        """Variables that are part of an address."""
        found = {}
        for words, _ in self.all():
            if words[0] in PASSES and len(words) == 2:
                protocol = "https" if plain(words[1]).startswith("https") else PASSES[words[0]]
                for name in re.findall(r"\$\{?(\w+)", plain(words[1]).split("://")[-1].split("/")[0]):
                    found.setdefault(name, protocol)
                text = plain(words[1])
                if text.startswith("$"):
                    scheme = re.match(r"\$\{?(\w+)\}?://", text)
                    values = [plain(w[2]) for w, _ in self.all() if scheme and w[0] == "set" and len(w) == 3 and plain(w[1]) == f"${scheme.group(1)}"]
                    if values and all(value == "https" for value in values):
                        found = {name: "https" if f"${name}" in text or f"${{{name}}}" in text else of for name, of in found.items()}
        return found

    def protocols_of_upstreams(self):
        names = {plain(words[1]) for words, inner in self.all() if words[0] == "upstream" and len(words) == 2 and inner is not None}
        found = {}
        for words, _ in self.all():
            if words[0] in PASSES and len(words) == 2:
                text = plain(words[1])
                host = text.split("://")[-1].split("/")[0]
                protocol = {"https": "https", "http": "http"}.get(text.split("://")[0], PASSES[words[0]])
                if words[0] == "grpc_pass":
                    protocol = "grpc"
                for name in names & {host, host.rsplit(":", 1)[0]}:
                    found.setdefault(name, protocol)
        self.upstreams = names
        return found

    def application(self, protocol, name, host, port):
        """The address of a stand-in: one for each name of a host, with all ports that are used."""
        key = (protocol, host)
        if key not in self.names:
            if len(self.names) > 200:
                raise Unfit("too many applications")
            self.names[key] = f"127.{100 + self.number}.1.{len(self.names) + 1}"
        address = self.names[key]
        for number in [port] if port else self.ports:
            self.applications[(address, number)] = (protocol, name)
        return address

    def server_of_upstream(self, text, protocol, name):
        if text.startswith("unix:"):
            path = str(self.folder / "sockets" / re.sub(r"\W+", "_", text[5:])[-40:])
            self.applications[path] = (protocol, name)
            return f"unix:{path}"
        host, port = text, None
        if match := re.fullmatch(r"(.*):(\d+)", text):
            host, port = match.group(1), int(match.group(2))
        usual = {"https": 443}.get(protocol, 80)
        return f"{self.application(protocol, name, host, port or usual)}:{port or usual}"

    def passed(self, text, protocol):
        """The URL of a `…_pass` with a stand-in in place of its host."""
        scheme, rest = re.fullmatch(r"((?:\w+|\$\w+|\$\{\w+\})://)?(.*)", text, re.S).groups()
        scheme = scheme or ""
        if scheme.startswith("https"):
            protocol = "https"
        if rest.startswith("unix:"):
            path, colon, uri = rest[5:].partition(":")
            return f"{scheme}{self.server_of_upstream('unix:' + path, protocol, Path(path).name)}{colon}{uri}"
        cut = re.search(r"[/?]|(?<=.)\$(?!\{?\w*(?:port|PORT))", rest) if not rest.startswith("$") else re.search(r"/", rest)
        host, uri = (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "")
        if not host or "$" in host.rsplit(":", 1)[0] or host in self.upstreams or host.rsplit(":", 1)[0] in self.upstreams:
            return text
        if match := re.fullmatch(r"(.*):(\$\{?\w+\}?)", host):
            return f"{scheme}{self.application(protocol, match.group(1), match.group(1), None)}:{match.group(2)}{uri}"
        return f"{scheme}{self.server_of_upstream(host, protocol, host)}{uri}"

    def address_value(self, name, text):
        """The value of a variable that is part of an address."""
        protocol = self.variables[name]
        if "$" in text or text in self.upstreams or not text or text.isdigit() or text in ("http", "https"):
            return text
        if "://" in text or re.fullmatch(r"[\w.-]+:\d+(/.*)?", text) or text.startswith("unix:"):
            return self.passed(text, protocol)
        if re.fullmatch(r"[\w.-]+", text):
            return self.application(protocol, text, text, None)
        return text

    # ---- blocks -----------------------------------------------------------------------------------------------------

    def block(self, tree, path):
        found = []
        listens = 0
        for words, inner in tree:
            result = self.directive(words, inner, path)
            listens += sum(1 for it, _ in result if it[0] == "listen")
            found += result
        if path[-1] == "server" and path[-2] == "http" and not listens:
            if any(words[0] == "listen" for words, _ in tree):
                raise Unfit("listeners that cannot be replaced")
            found = self.directive(["listen", "80"], None, path) + found
        return found

    def directive(self, words, inner, path):
        name, rest = words[0], [plain(word) for word in words[1:]]
        if name in DROPPED:
            return []
        if path[-1] in ("map", "geo", "types", "split_clients"):
            return [(self.case(words, path), inner)]
        if inner is not None:
            extra = [plain(words[2]).lstrip("$")] if name == "map" and len(words) == 3 else rest[:1]
            self.current = extra[0] if extra else ""
            return [([self.moved(word) if name == "if" else word for word in words], self.block(inner, [*path, name]))]
        if name == "listen":
            return self.listen(rest)
        if name in PASSES and len(rest) == 1:
            return [([name, quoted(self.passed(rest[0], PASSES[name]))], None)]
        if name == "server" and path[-1] == "upstream":
            protocol = self.protocols.get(self.current, "http")
            options = [word for word in words[2:] if not re.match(r"resolve$|service=|slow_start=|route=", word)]
            return [([name, self.server_of_upstream(rest[0], protocol, self.current), *options], None)]
        if name == "set" and len(rest) == 2 and rest[0].lstrip("$") in self.variables:
            return [([name, words[1], quoted(self.address_value(rest[0].lstrip("$"), rest[1]))], None)]
        if name in CERTIFICATES or name in KEYS:
            if rest[:1] and (rest[0].startswith("data:") or "$" in rest[0]):
                self.notes.append(f"{name} {rest[0]} replaced")
            return [([name, self.certificate[0 if name in CERTIFICATES else 1]], None)]
        if name == "auth_basic_user_file":
            return [([name, str(self.folder / "users")], None)]
        if name == "access_log":
            if rest[0] == "off" or rest[0].startswith("syslog:"):
                return [([name, "off"], None)]
            return [([name, quoted(str(self.folder / "logs" / Path(rest[0]).name)), *[word for word in words[2:] if not word.startswith("gzip")]], None)]
        if name.endswith("_cache_path"):
            return [([name, str(self.folder / "cache" / re.sub(r"\W+", "_", rest[0])), *[word for word in words[2:] if not word.startswith(("use_temp_path", "purger", "manager_", "loader_"))]], None)]
        if name == "resolver":
            return [([name, "127.0.0.1:5353", *[word for word in words[1:] if word.startswith("valid=")]], None)]
        if name == "limit_req_zone":
            return [([re.sub(r"^rate=.*", "rate=100000r/s", word) for word in words], None)]
        if name == "root" and rest:
            return [([name, quoted(self.root(rest[0]))], None)]
        if name == "alias" and rest:
            return [([name, quoted(self.root(rest[0], is_alias=True))], None)]
        if name == "error_page" and rest and rest[-1].startswith("/"):
            self.files.setdefault(rest[-1].split("?")[0], None)
        return [([self.moved(word) for word in words], None)]

    def case(self, words, path):
        """A line of a `map`, whose value may be an address."""
        if path[-1] == "map" and len(words) == 2 and self.current in self.variables:
            return [words[0], quoted(self.address_value(self.current, plain(words[1])))]
        return words

    def listen(self, rest):
        address, options = rest[0], rest[1:]
        if "quic" in options or "http3" in options or "udp" in options:
            return []
        options = [it for it in options if it in ("ssl", "http2", "default_server", "default", "proxy_protocol")]
        if address.startswith("unix:") or "-" in address.rsplit(":", 1)[-1]:
            raise Unfit(f"listen {address}")
        if address.startswith("["):
            # The same on IPv6 as on IPv4, if it is there too.
            return []
        host, _, port = address.rpartition(":") if not address.isdigit() else ("", "", address)
        if not port.isdigit():
            host, port = port, "80"
        port = int(port)
        if not self.keeps_ports and port < 1024:
            port += 10000
        is_tls, is_proxied = "ssl" in options, "proxy_protocol" in options
        known = self.listeners.get(port, (False, False))
        self.listeners[port] = (known[0] or is_tls, known[1] or is_proxied)
        return [(["listen", f"@HOST@:{port}", *options], None)]

    # ---- files ------------------------------------------------------------------------------------------------------

    def root(self, text, is_alias=False):
        before, dollar, after = text.partition("$")
        if not before:
            return text
        path = before if before.startswith("/") else "/etc/nginx/" + before
        moved = f"{self.folder}/roots{path}"
        is_file = is_alias and not dollar and ENDINGS.search(path)
        self.roots.setdefault(moved.rstrip("/") if not dollar else moved.rsplit("/", 1)[0], bool(is_file))
        self.moves = sorted({*self.moves, path.rstrip("/")}, key=len, reverse=True)
        return moved + dollar + after

    def moved(self, word):
        """A word that begins with a root, such as the name of a script."""
        for path in self.moves:
            if len(path) > 1 and re.match(rf"[\"']?{re.escape(path)}(/|$|[\"'])", word):
                return word.replace(path, f"{self.folder}/roots{path}", 1)
        return word

    def make_files(self):
        for root, is_file in self.roots.items():
            root = Path(root)
            if is_file:
                root.parent.mkdir(parents=True, exist_ok=True)
                if not root.exists():
                    root.write_text(f"the file {root.name}\n")
                continue
            for name in [*FILES, *[name.lstrip("/") for name in self.files if "$" not in name and ".." not in name]]:
                file = root / name
                try:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    if not file.exists():
                        file.write_text(f"{name} of {root.relative_to(self.folder / 'roots')}\n" * (300 if name == "large.css" else 1))
                except OSError:
                    pass
        for file in [self.folder / "roots", *(self.folder / "roots").rglob("*")]:
            os.utime(file, (1_700_000_000, 1_700_000_000))
        # user:password
        (self.folder / "users").write_text("user:$apr1$4Jq1pUNY$0sSkzkGwGWRTDNlGsHGqy1\n")

    def define(self, name):
        """A variable of another file: of the usual `map` for WebSocket, or with a value of its own."""
        if name in self.variables:
            raise Unfit(f"an application in ${name}, which is not in this file")
        self.notes.append(f"with ${name}")
        lines = [(["default", "upgrade"], None), (['""', "close"], None)] if name == "connection_upgrade" else [(["default", f'"{name}"'], None)]
        http = next(inner for words, inner in self.tree if words[0] == "http")
        http.insert(0, (["map", "$http_upgrade", f"${name}"], lines))

    def text(self, host, modules=()):
        loaded = "".join(f"load_module {module};\n" for module in modules)
        head = f"{loaded}worker_processes 1;\npid {self.folder}/nginx-{host}.pid;\nerror_log {self.folder}/logs/error.log;\nevents {{ worker_connections 512; }}\n"
        temporary = "".join(f"    {name}_temp_path {self.folder}/body/{name};\n" for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"])
        return head + written(self.tree).replace("http {\n", f"http {{\n{temporary}", 1).replace("@HOST@", host)


def quoted(text):
    if re.search(r"[\s;{}\"']", text.replace("${", "")) and not re.fullmatch(r"[^\s;{}\"']*(\$\{\w+\}[^\s;{}\"']*)+", text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text
