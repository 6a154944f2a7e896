"""An API server of Kubernetes that has only objects: lists, watches, statuses, Leases. It checks nothing, and is one asyncio program."""

import asyncio, json
from urllib.parse import parse_qs, urlsplit

LISTS = {
    "/api/v1": ["namespaces", "services", "secrets", "configmaps"],
    "/apis/discovery.k8s.io/v1": ["endpointslices"],
    "/apis/networking.k8s.io/v1": ["ingresses", "ingressclasses"],
    "/apis/gateway.networking.k8s.io/v1": ["gatewayclasses", "gateways", "httproutes", "grpcroutes", "tlsroutes", "backendtlspolicies"],
    "/apis/gateway.networking.k8s.io/v1beta1": ["referencegrants"],
    "/apis/coordination.k8s.io/v1": ["leases"],
}


class ScriptedApi:
    def __init__(self):
        self.objects = {f"{group}/{plural}": {} for group, plurals in LISTS.items() for plural in plurals}
        self.watchers = {path: set() for path in self.objects}
        self.events = {path: [] for path in self.objects}
        self.version = 1
        self.patches = 0

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, limit=1 << 24)
        return self.server.sockets[0].getsockname()[1]

    def put(self, path, value):
        """Adds or replaces an object, and tells all who watch."""
        self.version += 1
        metadata = value["metadata"]
        metadata["resourceVersion"] = str(self.version)
        place = (metadata.get("namespace", ""), metadata["name"])
        kind = "MODIFIED" if place in self.objects[path] else "ADDED"
        self.objects[path][place] = value
        self.tell(path, kind, value)

    def tell(self, path, kind, value):
        line = json.dumps({"type": kind, "object": value}).encode() + b"\n"
        self.events[path].append((self.version, line))
        del self.events[path][:-5000]
        for queue in self.watchers[path]:
            queue.put_nowait(line)

    async def serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                method, target, _ = lines[0].split(" ")
                fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                url = urlsplit(target)
                path, query = url.path, parse_qs(url.query)
                if "watch" in query and query["watch"][0] in ("true", "1"):
                    return await self.watch(writer, path, query)
                status, answer = self.answer(method, path, body)
                text = json.dumps(answer).encode()
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def watch(self, writer, path, query):
        since, end = (int(query.get(name, ["0"])[0] or 0) for name in ("resourceVersion", "timeoutSeconds"))
        if path not in self.watchers:
            writer.write(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")
            return
        queue = asyncio.Queue()
        for version, line in self.events[path]:
            if version > since:
                queue.put_nowait(line)
        self.watchers[path].add(queue)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            async with asyncio.timeout(end or None):
                while True:
                    await writer.drain()
                    line = await queue.get()
                    writer.write(b"%x\r\n%s\r\n" % (len(line), line))
        except TimeoutError:
            # The client continues with a new watch.
            writer.write(b"0\r\n\r\n")
        finally:
            self.watchers[path].discard(queue)

    def answer(self, method, path, body):
        if path in self.objects and method == "GET":
            items = list(self.objects[path].values())
            return 200, {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": str(self.version)}, "items": items}
        parts = path.strip("/").split("/")
        is_status = parts[-1] == "status"
        parts = parts[:-1] if is_status else parts
        depth = 2 if parts[0] == "api" else 3
        group, rest = "/" + "/".join(parts[:depth]), parts[depth:]
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        listed = f"{group}/{rest[0]}" if rest else ""
        if listed not in self.objects:
            return 404, failure(404)
        if method == "POST":
            value = json.loads(body)
            value["metadata"]["namespace"] = namespace
            self.put(listed, value)
            return 201, value
        known = self.objects[listed].get((namespace, rest[1] if len(rest) > 1 else ""))
        if known is None:
            return 404, failure(404)
        if method == "PUT":
            value = json.loads(body)
            self.put(listed, value)
            return 200, value
        if method == "PATCH" and is_status:
            self.patches += 1
            self.put(listed, {**known, "status": json.loads(body)["status"], "metadata": dict(known["metadata"])})
            return 200, self.objects[listed][(namespace, rest[1])]
        return 200, known


def failure(code):
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "message": "not found", "code": code}
