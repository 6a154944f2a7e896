"""What the demos print: lines at once, in colours if somebody reads them on a terminal."""

import sys

_CODES = ("\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m")
BOLD, DIM, GREEN, RED, OFF = _CODES if sys.stdout.isatty() else [""] * len(_CODES)


def say(text=""):
    print(text, flush=True)


def done(text):
    """A step that has succeeded."""
    say(f"  {GREEN}✓{OFF} {text}")
