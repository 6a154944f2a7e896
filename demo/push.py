#!/usr/bin/env python3
"""The demo of push: ten thousand subscribers of scores and quotes by Server-Sent Events, WebSocket and long poll, a feed at the
pace of an evening, a reader that is slow, and a reload in the middle. `./x demo push` builds what it needs and calls it."""

import json, random, resource, shutil, signal, socket, subprocess, sys, threading, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import children  # noqa: E402
from feeding import FLATOUT, Publisher, Subscribers, settle  # noqa: E402  the subscribers are the benchmark's own
from servers import CLIENT_CPU, SERVER_CPU, Server, pin  # noqa: E402
from smoke import sized  # noqa: E402

WORK = ROOT / "target/demo-push"
SECONDS = sized(30, smoke=3)
GAMES, SYMBOLS = 15, 400
SCORES_PER_S, QUOTES_PER_S, QUOTES_PER_BATCH = 3, 20, 5

# The feed of the slow reader: more than it can read and than the kernel's buffers hold.
TICK_KEYS, TICK_BYTES, TICK_PAUSE_S, SLOW_BYTES_PER_S = 50, 3_000, 0.25, 8_000

# By channel and transport, in separate processes: 10,000 in all.
# A hundredth of them is enough to see that it works.
SHARE = sized(1, smoke=100)
GROUPS = [("/live/scores", "events", 2_500), ("/live/scores", "websocket", 2_000), ("/live/scores", "poll", 500),
          ("/quotes/board", "events", 2_500), ("/quotes/board", "websocket", 2_000), ("/quotes/board", "poll", 500)]
GROUPS = [(channel, transport, count // SHARE) for channel, transport, count in GROUPS]

SITE = """listen "127.0.0.1:{port}"
workers 1
route "/live" {{
    push
    push-token "bench"
    push-history 1000
}}
route "/quotes" {{
    push
    push-kind latest
    push-history 10000
    push-token "bench"
}}
"""


class Demo(Server):
    """`flatout serve` with a site file that is changed while it runs."""

    def __init__(self):
        super().__init__("flatout", [FLATOUT, "serve", "-c", str(WORK / "site.kdl")], "/", SERVER_CPU)
        (WORK / "site.kdl").write_text(SITE.format(port=self.port))

    def reload(self):
        """Adds a route, and waits until it is there."""
        with open(WORK / "site.kdl", "a") as file:
            file.write('route "/new" {\n    respond 200 "new"\n}\n')
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 10
        while subprocess.run(["curl", "-sf", "-o", "/dev/null", "--max-time", "2", f"http://127.0.0.1:{self.port}/new"]).returncode != 0:
            if time.monotonic() > deadline:
                raise RuntimeError("the reload did not take effect within 10 s")
            time.sleep(0.05)


class SlowReader(threading.Thread):
    """Subscribes to a feed that is faster than it reads, and keeps the last value of each key."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.stream = socket.socket()
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.stream.connect(("127.0.0.1", port))
        self.stream.settimeout(2)
        self.stream.sendall(b"GET /quotes/ticks HTTP/1.1\r\nHost: demo\r\n\r\n")
        self.values, self.received, self.hurries = {}, 0, threading.Event()
        self.start()

    def run(self):
        rest = b""
        try:
            while piece := self.stream.recv(SLOW_BYTES_PER_S // 10):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        tick = json.loads(line[6:])
                        self.values[tick["key"]] = tick["n"]
                        self.received += 1
                if not self.hurries.is_set():
                    time.sleep(0.1)
        except TimeoutError:
            # Nothing more arrives: it has caught up.
            pass

    def catch_up(self):
        self.hurries.set()
        self.join(30)


class Feed:
    """An evening: scores one by one, quotes in batches, and ticks that nobody could read one by one."""

    def __init__(self, port):
        self.publisher, self.random = Publisher(port), random.Random(1)
        self.scores = self.quotes = self.ticks = 0
        self.newest, self.prices = {}, [self.random.uniform(5, 200) for _ in range(SYMBOLS)]

    def score(self):
        self.scores += 1
        game = self.random.randrange(GAMES)
        text = {"seq": self.scores, "at": now_us(), "game": f"game {game}", "score": [self.scores // 2, self.scores // 3], "clock": "12:10"}
        self.publisher.post("/live/scores", json.dumps(text))

    def quote(self):
        batch = []
        for _ in range(QUOTES_PER_BATCH):
            self.quotes += 1
            at = self.random.randrange(SYMBOLS)
            self.prices[at] *= self.random.uniform(0.99, 1.01)
            data = {"seq": self.quotes, "at": now_us(), "symbol": f"s{at}", "price": round(self.prices[at], 2)}
            batch.append({"channel": "board", "key": f"s{at}", "data": data})
        self.publisher.post("/quotes", json.dumps(batch))

    def tick(self):
        batch = []
        for _ in range(TICK_KEYS):
            self.ticks += 1
            key = f"t{self.ticks % TICK_KEYS}"
            self.newest[key] = self.ticks
            batch.append({"channel": "ticks", "key": key, "data": {"key": key, "n": self.ticks, "pad": "x" * TICK_BYTES}})
        self.publisher.post("/quotes", json.dumps(batch))

    def run(self, seconds, in_the_middle):
        began, due = time.monotonic(), {self.score: 1 / SCORES_PER_S, self.quote: QUOTES_PER_BATCH / QUOTES_PER_S, self.tick: TICK_PAUSE_S}
        next_at = {act: began + pause for act, pause in due.items()}
        while (now := time.monotonic()) < began + seconds:
            if in_the_middle and now > began + seconds / 2:
                in_the_middle()
                in_the_middle = None
            act = min(next_at, key=next_at.get)
            time.sleep(max(next_at[act] - time.monotonic(), 0))
            act()
            next_at[act] += due[act]


def now_us():
    return time.time_ns() // 1000


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    pin(CLIENT_CPU)()
    all_of_them = sum(count for _, _, count in GROUPS)
    groups = []
    with Demo() as server:
        try:
            print(f"{all_of_them:,} subscribers connect to {FLATOUT} serve, one worker …", flush=True)
            before = server.anonymous_bytes()
            for number, (channel, transport, count) in enumerate(GROUPS):
                groups.append(Subscribers(f"http://127.0.0.1:{server.port}{channel}", count, CLIENT_CPU, transport, number))
            settle(server, all_of_them)
            idle_bytes = (server.anonymous_bytes() - before) / all_of_them
            slow, feed = SlowReader(server.port), Feed(server.port)
            print(f"{SECONDS} s of scores and quotes, a reload in the middle, and a reader that cannot keep up …", flush=True)
            cpu_ns, began = server.cpu_ns(), time.monotonic()
            feed.run(SECONDS, server.reload)
            slow.catch_up()
            used_ns, took = server.cpu_ns() - cpu_ns, time.monotonic() - began
            bytes_now = (server.anonymous_bytes() - before) / all_of_them
            found = [group.end() for group in groups]
        finally:
            for group in groups:
                group.drop()
    return report(feed, slow, found, (idle_bytes, bytes_now), used_ns, took)


def report(feed, slow, found, memory, used_ns, took):
    print("\n| channel | transport | subscribers | published | delivered | p50 ms | p99 ms | max ms | gaps | errors |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    is_good, delivered = True, 0
    for (channel, transport, count), run in zip(GROUPS, found):
        published = feed.scores if channel.endswith("scores") else feed.quotes
        gaps = run["missed"] + run["repeated"] + run["gaps_reported"]
        delivered += run["messages"]
        # A reader of quotes may skip values that newer ones have replaced.
        is_log = channel.endswith("scores")
        is_good &= run["errors"] == 0 and (not is_log or (gaps == 0 and run["messages"] == published * count))
        note = "" if is_log or not gaps else " (replaced)"
        print(f"| {channel} | {transport} | {count:,} | {published:,} | {run['messages']:,} | {run['p50']:.1f} | {run['p99']:.1f} | {run['max']:.1f} | {gaps}{note} | {run['errors']} |")
    subscribers = sum(run["subscribers"] for run in found)
    is_newest = slow.values == feed.newest
    print(f"\nMemory of the server: {memory[0]:.0f} bytes for each idle subscriber, {memory[1]:.0f} after the feed with its history.")
    print(f"CPU of the server: {used_ns / took / 1e7:.1f} % of one core, {used_ns / took / subscribers / 1e3:.2f} µs a second for each subscriber, "
          f"{used_ns / max(delivered, 1) / 1e3:.2f} µs for each delivery.")
    print(f"The slow reader received {slow.received:,} of {feed.ticks:,} values, and {'has the newest of each key' if is_newest else 'LACKS some of the newest values'}.")
    print("No score was lost or came twice, and nobody noticed the reload." if is_good else "NOT as it should be: see errors, gaps and what was delivered.")
    return 0 if is_good and is_newest else 1


if __name__ == "__main__":
    children.end_on_signals()
    sys.exit(main())
