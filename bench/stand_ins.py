"""Servers that stand in for the applications of a configuration: each response names the application and repeats what it got."""

import os, socket, ssl, struct, threading, urllib.parse

# Fields that differ without meaning: of the connection, or with a value that no two requests share.
UNREPEATED = {"connection", "keep-alive", "te", "via", "date", "x-request-id", "x-request-start", "x-real-port",
    # A server that stores or cuts responses itself asks for whole ones.
    "range", "if-range", "if-none-match", "if-modified-since", "accept-encoding",
}

# Parameters of FastCGI, uwsgi and SCGI, likewise.
UNREPEATED_PARAMETERS = {
    "REMOTE_PORT", "SERVER_SOFTWARE", "SERVER_ADDR", "HTTP_CONNECTION", "REQUEST_ID", "REQUEST_TIME", "HTTP_X_REQUEST_ID",
    "HTTP_RANGE", "HTTP_IF_NONE_MATCH", "HTTP_IF_MODIFIED_SINCE", "HTTP_ACCEPT_ENCODING",
}

TYPES = {
    "html": "text/html", "css": "text/css", "js": "application/javascript", "json": "application/json", "png": "image/png", "svg": "image/svg+xml",
}


def response(name, method, target, lines):
    """Status, fields and body of a response that depends on nothing but the request."""
    path = urllib.parse.unquote(target.split("?")[0]).lower()
    status, fields = "200 OK", [("Set-Cookie", "stand-in=1; Path=/; HttpOnly")]
    if "nothing" in path:
        status = "404 Not Found"
    elif "broken" in path:
        status = "500 Internal Server Error"
    elif "moved" in path:
        status = "302 Found"
        fields.append(("Location", "/elsewhere?from=stand-in"))
    fields.append(("Content-Type", "text/html" if path.endswith("/") else TYPES.get(path.rsplit(".", 1)[-1], "text/plain")))
    body = "".join(f"{line}\n" for line in [f"application {name}", f"{method} {target}", *sorted(set(lines))]).encode(errors="surrogateescape")
    return status, fields, body


class Stream:
    def __init__(self, connection):
        self.connection, self.rest = connection, b""

    def exactly(self, count):
        while len(self.rest) < count:
            piece = self.connection.recv(65536)
            if not piece:
                raise EOFError
            self.rest += piece
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def until(self, end):
        while end not in self.rest:
            piece = self.connection.recv(65536)
            if not piece:
                raise EOFError
            self.rest += piece
        taken, self.rest = self.rest.split(end, 1)
        return taken


def http(name, connection):
    stream = Stream(connection)
    while True:
        head = stream.until(b"\r\n\r\n").decode(errors="surrogateescape").split("\r\n")
        method, target, version = head[0].split(" ", 2)
        fields = [line.split(":", 1) for line in head[1:]]
        fields = [(field.lower(), value.strip()) for field, value in fields]
        length = next((int(value) for field, value in fields if field == "content-length"), 0)
        stream.exactly(length)
        kept = [f"{field}: {value}" for field, value in fields if field not in UNREPEATED]
        status, answered, body = response(name, method, target, kept)
        keeps = version == "HTTP/1.1" and ("connection", "close") not in [(field, value.lower()) for field, value in fields]
        text = "".join(f"{field}: {value}\r\n" for field, value in [*answered, ("Content-Length", len(body)), ("Connection", "keep-alive" if keeps else "close")])
        connection.sendall(f"HTTP/1.1 {status}\r\n{text}\r\n".encode() + (b"" if method == "HEAD" else body))
        if not keeps:
            return


def of_script(name, parameters, status_line):
    """What a script in `parameters` responds; one that is missing is 404, as php-fpm has it."""
    method, target = parameters.get("REQUEST_METHOD", "GET"), parameters.get("REQUEST_URI", "/")
    kept = [f"{key}: {value}" for key, value in parameters.items() if value and key not in UNREPEATED_PARAMETERS]
    script = parameters.get("SCRIPT_FILENAME")
    if script is not None and name.startswith("fastcgi") and not os.path.isfile(script):
        status, fields, body = "404 Not Found", [("Content-Type", "text/html; charset=UTF-8")], b"File not found.\n"
    else:
        status, fields, body = response(name, method, target, kept)
    text = "".join(f"{field}: {value}\r\n" for field, value in fields)
    return f"{status_line} {status}\r\n{text}\r\n".encode() + (b"" if method == "HEAD" else body)


def fastcgi(name, connection):
    stream = Stream(connection)
    while True:
        packed, keeps = b"", False
        while True:
            _, kind, request, length, padding, _ = struct.unpack(">BBHHBB", stream.exactly(8))
            content = stream.exactly(length)
            stream.exactly(padding)
            if kind == 1:
                keeps = bool(content[2] & 1)
            elif kind == 4:
                packed += content
            elif kind == 5 and not content:
                break
        parameters, at = {}, 0
        while at < len(packed):
            sizes = []
            for _ in range(2):
                if packed[at] < 128:
                    sizes.append(packed[at])
                    at += 1
                else:
                    sizes.append(struct.unpack(">I", packed[at : at + 4])[0] & 0x7FFFFFFF)
                    at += 4
            key = packed[at : at + sizes[0]].decode(errors="surrogateescape")
            parameters[key] = packed[at + sizes[0] : at + sum(sizes)].decode(errors="surrogateescape")
            at += sum(sizes)
        out = of_script(name, parameters, "Status:")
        records = [out[start : start + 60000] for start in range(0, len(out), 60000)] + [b""]
        for record in records:
            connection.sendall(struct.pack(">BBHHBB", 1, 6, request, len(record), 0, 0) + record)
        connection.sendall(struct.pack(">BBHHBB", 1, 3, request, 8, 0, 0) + bytes(8))
        if not keeps:
            return


def uwsgi(name, connection):
    stream = Stream(connection)
    _, size, _ = struct.unpack("<BHB", stream.exactly(4))
    packed, parameters, at = stream.exactly(size), {}, 0
    while at < size:
        pair = []
        for _ in range(2):
            (length,) = struct.unpack_from("<H", packed, at)
            pair.append(packed[at + 2 : at + 2 + length].decode(errors="surrogateescape"))
            at += 2 + length
        parameters[pair[0]] = pair[1]
    connection.sendall(of_script(name, parameters, "HTTP/1.1"))


def scgi(name, connection):
    stream = Stream(connection)
    words = stream.exactly(int(stream.until(b":"))).decode(errors="surrogateescape").split("\0")
    connection.sendall(of_script(name, dict(zip(words[::2], words[1::2])), "Status:"))


def grpc(_name, _connection):
    """Not spoken: both servers get a connection that is closed."""


PROTOCOLS = {"http": http, "https": http, "fastcgi": fastcgi, "uwsgi": uwsgi, "scgi": scgi, "grpc": grpc}


class StandIns:
    """The listeners of one configuration, until `close`."""

    def __init__(self, certificate):
        self.listeners = []
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(*certificate)

    def listen(self, protocol, name, address):
        """`address`: (host, port), or the path of a Unix socket. One that is in use is left out."""
        listener = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError:
            listener.close()
            return
        listener.listen(64)
        if isinstance(address, str):
            os.chmod(address, 0o666)
        self.listeners.append(listener)
        threading.Thread(target=self.accept, args=(protocol, f"{protocol} {name}", listener), daemon=True).start()

    def accept(self, protocol, name, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(protocol, name, connection), daemon=True).start()

    def serve(self, protocol, name, connection):
        try:
            connection.settimeout(60)
            if protocol == "https":
                connection = self.tls.wrap_socket(connection, server_side=True)
            PROTOCOLS[protocol](name, connection)
        except (EOFError, OSError, ValueError, struct.error):
            pass
        finally:
            connection.close()

    def close(self):
        for listener in self.listeners:
            try:
                listener.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            listener.close()
