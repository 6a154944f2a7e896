"""Smoke runs: with `--smoke` a benchmark or a demo checks in a few seconds that it works. Its figures mean nothing and are not
written, and what a full run only reports (a server that fails) ends it."""

import sys

IS_SMOKE = "--smoke" in sys.argv
HELP = "check in a few seconds that it works; the figures mean nothing"
left_out = set()


def sized(full, smoke):
    """A size of the measurement: a number of connections, a duration."""
    return smoke if IS_SMOKE else full


def leave_out(what):
    """Says once what is not measured, because it is not here."""
    if what not in left_out:
        left_out.add(what)
        print(f"  left out: {what}", file=sys.stderr)


def failed(name, error):
    """A server that failed is left out of a measurement; a smoke run ends."""
    if IS_SMOKE:
        raise error
    print(f"  {name}: {error}", file=sys.stderr)
