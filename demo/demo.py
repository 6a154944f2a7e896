#!/usr/bin/env python3
"""The demo: serves the bundled site and the JSON API on loopback, checks both with curl, loads them with wrk beside the
floor, and ends. `--keep` goes on serving. `./x demo` builds what it needs and calls it."""

import os, re, signal, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import drive  # noqa: E402  the servers, wrk and the CPU accounts are the benchmark's own

SECONDS = 4
BOLD, DIM, GREEN, RED, OFF = ("\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m") if sys.stdout.isatty() else [""] * 5


def say(text=""):
    print(text, flush=True)


def check(what, command, *wanted):
    """Runs curl, and looks for what must be in its answer."""
    out = subprocess.run(["curl", "-sS", "-i", "--max-time", "5", *command], capture_output=True).stdout
    text = out.decode("latin-1")
    lacking = [want for want in wanted if not re.search(want, text, re.M | re.I)]
    if lacking:
        say(f"  {RED}✗{OFF} {what}: no {lacking[0]} in\n{text[:600]}")
        sys.exit(1)
    say(f"  {GREEN}✓{OFF} {what}")
    return text


def check_all(site, api):
    say(f"{BOLD}checked with curl{OFF}")
    page = check("the page", [site], "^HTTP/1.1 200 OK", "^Content-Type: text/html; charset=utf-8", "<!doctype html>")
    etag = re.search(r"^ETag: (.*?)\r?$", page, re.M)[1]
    check("…the client has it already: 304", [site, "-H", f"If-None-Match: {etag}"], "^HTTP/1.1 304")
    deadline = time.time() + 20
    while time.time() < deadline and "Content-Encoding" not in head(site, "br"):
        time.sleep(0.1)
    check("…compressed: brotli", [site, "-H", "Accept-Encoding: br"], "^Content-Encoding: br", "^Vary: Accept-Encoding")
    check("a picture", [site + "hills.svg"], "^Content-Type: image/svg", "<svg")
    check("…a part of it: 206", [site + "hills.svg", "-r", "0-9"], "^HTTP/1.1 206", "^Content-Range: bytes 0-9/")
    check("no way out: 400", [site + "../Cargo.toml", "--path-as-is"], "^HTTP/1.1 400", "^Connection: close")
    check("the API", [api], "^HTTP/1.1 200 OK", "^Content-Type: application/json", "^Date: ", '{"message":"Hello, World!"}')


def head(url, coding):
    command = ["curl", "-sS", "-I", "--max-time", "5", "-H", f"Accept-Encoding: {coding}", url]
    return subprocess.run(command, capture_output=True, text=True).stdout


def load(servers):
    say(f"\n{BOLD}loaded with wrk{OFF} {DIM}64 connections, {SECONDS} s each, server on CPU {drive.SERVER_CPU}, client on CPU {drive.CLIENT_CPU}{OFF}")
    say(f"  {'':<22}{'requests/s':>12}{'p50':>9}{'p99':>9}{'user':>9}{'kernel':>9}{'CPU/request':>16}")
    floor = None
    for label, server in servers:
        run = drive.measure(server, 64, SECONDS)
        floor = floor or run["cpu_us"]
        say(f"  {label:<22}{run['requests_per_s']:>12,.0f}{run['p50_us']:>6.0f} µs{run['p99_us']:>6.0f} µs{run['user_us']:>6.2f} µs"
            f"{run['kernel_us']:>6.2f} µs{run['cpu_us']:>8.2f} µs  ×{run['cpu_us'] / floor:.2f}")
    say(f"  {DIM}the floor reads without parsing and writes a constant: no server on this kernel costs less{OFF}")


def main():
    keep = sys.argv[1:] == ["--keep"]
    if sys.argv[1:] and not keep:
        sys.exit("demo: got " + " ".join(sys.argv[1:]) + ", need nothing or --keep")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    drive.SITE = ROOT / "demo/site"
    floor, site, api = drive.floor(), drive.flatout_files("/"), drive.flatout_json()
    with floor, site, api:
        say(f"site  http://127.0.0.1:{site.port}/\nAPI   http://127.0.0.1:{api.port}/json\n")
        check_all(site.url(), api.url())
        load([("floor", floor), ("flatout GET /json", api), ("flatout GET / (page)", site)])
        if keep:
            say(f"\nserving on  http://127.0.0.1:{site.port}/  and  http://127.0.0.1:{api.port}/json   Ctrl-C stops them")
            try:
                signal.pause()
            except KeyboardInterrupt:
                say()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        os._exit(130)
