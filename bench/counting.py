"""The case of instructions, counted by valgrind."""

import re, shutil, signal, socket, sys, time

from servers import flatout_files, flatout_json, guest_echo, guest_servers, observed
from smoke import IS_SMOKE, leave_out


def case_instructions(options):
    """User instructions a request, which no neighbour disturbs: the difference of two runs, so that starting cancels out.

    Pipelined, what it costs to wake up is shared by sixteen. Alone, each request comes to a server that sleeps: without the
    pause it would depend on chance whether the busy lane, which is looked at again, already has the next."""
    if IS_SMOKE and not shutil.which("valgrind"):
        leave_out("instructions; valgrind is not installed")
        return {}, []
    runs = {}
    with guest_echo() as upstream:
        subjects = {"/json": flatout_json(), "/json by an async handler": flatout_json(), "a file of 1 KiB": flatout_files("/1024.bin"),
                    "what is not there": flatout_files("/nothing")}
        subjects["/json by an async handler"].path = "/json-async"
        subjects |= {f"/json, {server.name}": server for server in observed()}
        # Parked, with the response given by the guest that reads the upstream; and the same with a future.
        subjects |= {f"an upstream's answer, by {server.name}": server for server in guest_servers(upstream)}
        if IS_SMOKE:
            subjects = {"/json": flatout_json()}
        for name, server in subjects.items():
            for how, deep in [("16 pipelined", 16), ("alone, waking up", 1)]:
                label = f"GET {name}, {how}"
                runs[label] = per_request(server, deep)
                print(f"  {label}: {runs[label]:.0f}", file=sys.stderr)
    lines = ["| request | user instructions |", "|---|---:|"] + [f"| {label} | {count:,.0f} |" for label, count in runs.items()]
    return runs, lines


def per_request(server, deep, differ=False):
    """`differ`: each request has a field with a different value."""
    few, many, pause = (2_000, 12_000, 0) if deep > 1 else (100, 600, 0.005)
    if IS_SMOKE:
        few, many = 32, 160
    counts = [instructions(server, requests, deep, pause, differ) for requests in (few, many)]
    return (counts[1] - counts[0]) / (many - few)


def instructions(server, requests, deep, pause, differ):
    out = server.folder.with_suffix(".callgrind")
    plain = server.command
    server.command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *plain]
    try:
        with server:
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                request = f"GET {server.path} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: */*\r\nUser-Agent: bench\r\n\r\n".encode()
                # The second response has the same length as all later ones: the first may have come from an upstream.
                for _ in range(2):
                    s.sendall(request)
                    time.sleep(0.3)
                    answer = len(s.recv(65536))
                numbered = request[:-2] + b"X-Request-Id: %012d\r\n\r\n"
                for turn in range(requests // deep):
                    s.sendall(b"".join(numbered % (turn * deep + at) for at in range(deep)) if differ else request * deep)
                    left = answer * deep
                    while left > 0:
                        left -= len(s.recv(65536))
                    time.sleep(pause)
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(20)
        files = sorted(out.parent.glob(out.name + "*"))
        totals = [int(m[1]) for f in files for m in re.finditer(r"^(?:summary|totals): (\d+)", f.read_text(), re.M)]
        for f in files:
            f.unlink()
        return max(totals)
    finally:
        server.command = plain
