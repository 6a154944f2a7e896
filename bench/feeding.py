"""A feed of messages, and subscribers held by `flatout bench`, for the benchmark of push and its demo."""

import http.client, json, os, signal, subprocess, threading, time

import children
from servers import pin, program

FLATOUT = program("flatout")

# A source address has some 28 000 ports, and finding a free one is slow when most are taken.
PER_SOURCE = 10_000

# A server has settled when it uses less than this share of a CPU; it still sends heartbeats.
QUIET_SHARE, QUIET_LOOK_S, SETTLE_TIME_MAX_S = 0.1, 0.25, 60


class Subscribers:
    """The connections of one process, which reads and counts messages until it is ended."""

    def __init__(self, url, count, cpu, transport="events", number=0):
        self.url, self.count, self.transport = url, count, transport
        first = 2 + number * 4
        sources = f"127.0.0.{first}-127.0.0.{first + -(-count // PER_SOURCE) - 1}"
        if transport == "websocket":
            url = url.replace("http://", "ws://", 1)
        elif transport == "poll":
            url += "?poll=1"
        flag = "--long-poll" if transport == "poll" else "--events"
        command = [FLATOUT, "bench", url, flag, "-t1", f"-c{count}", "-d1h", "--json", "--source", sources, "--max-errors", "1000000000"]
        out = subprocess.PIPE
        self.process = children.start(command, pin(cpu), stdout=out, stderr=out, text=True)

    def end(self):
        """Ends them, and returns their counts."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=60)
        if not out.startswith("{"):
            raise RuntimeError(f"{self.url}: flatout bench said: {err[-500:]}")
        said = json.loads(out)
        ms = {name: said["latency_ns"][name] / 1e6 for name in ("p50", "p99", "max")}
        return {"transport": self.transport, "subscribers": self.count, "held": said["connections_held"], "messages": said["requests"],
                "errors": sum(said["errors"].values()), **said["sequence"], **ms}

    def drop(self):
        """Ends them without a result."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        children.stop(self.process)


class Publisher:
    """Publishes by HTTP on one connection."""

    def __init__(self, port, token="bench"):
        self.connection, self.token = http.client.HTTPConnection("127.0.0.1", port, timeout=30), token

    def post(self, path, body, kind="application/json"):
        fields = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        self.connection.request("POST", path, body.encode(), fields)
        response = self.connection.getresponse()
        said = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{path}: {response.status} {said[:200]}")
        return said


class Feed:
    """A thread that publishes numbered messages of one size at one rate, until it is ended or has published them all."""

    def __init__(self, publish, per_s, message_bytes):
        self.publish, self.pause, self.message_bytes = publish, 1 / per_s, message_bytes
        self.published, self.failure, self.is_over = 0, None, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        due = time.monotonic()
        try:
            while not self.is_over.wait(max(due - time.monotonic(), 0)):
                self.publish(message(self.published + 1, self.message_bytes))
                self.published += 1
                due += self.pause
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            self.failure = error

    def end(self):
        """Ends it, and returns the number of messages published."""
        self.is_over.set()
        self.thread.join()
        if self.failure:
            raise RuntimeError(f"the feed ended: {self.failure}")
        return self.published


def message(number, size):
    """A numbered message of `size` bytes with its time."""
    head = f'{{"seq":{number},"at":{time.time_ns() // 1000},"pad":"'
    return head + "x" * max(size - len(head) - 2, 0) + '"}'


def descriptors(pids):
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def settle(server, count):
    """Waits until a server has this many connections and is idle."""
    deadline = time.monotonic() + SETTLE_TIME_MAX_S
    while descriptors(server.pids()) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{server.name} holds {descriptors(server.pids())} of {count} connections after {SETTLE_TIME_MAX_S} s")
        time.sleep(0.1)
    while time.monotonic() < deadline:
        before = server.cpu_ns()
        time.sleep(QUIET_LOOK_S)
        if server.cpu_ns() - before < QUIET_SHARE * QUIET_LOOK_S * 1e9:
            return
    raise RuntimeError(f"{server.name} is still busy after {SETTLE_TIME_MAX_S} s")
