#!/usr/bin/env python3
"""The smoke run of `./x demo realworld`: the RealWorld API starts on SQLite, answers, and ends by SIGTERM."""

import json, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from servers import SERVER_CPU, Server, program  # noqa: E402
import children  # noqa: E402


def main():
    with tempfile.TemporaryDirectory(prefix="flatout-demo-realworld-") as folder:
        command = [program("realworld"), "--database", f"{folder}/conduit.db", "--listen", "127.0.0.1:{port}"]
        with Server("realworld", command, "/api/tags", SERVER_CPU) as server:
            said = subprocess.run(["curl", "-sS", "--fail", "--max-time", "10", server.url()], capture_output=True, text=True, check=True).stdout
            assert json.loads(said) == {"tags": []}, said
            server.process.terminate()
            assert server.process.wait(20) == 0, "it does not end by SIGTERM as it should"
    print("the RealWorld API answers")


if __name__ == "__main__":
    children.end_on_signals()
    main()
