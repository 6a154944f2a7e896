"""Child processes that end with the program that has started them, whatever ends it: a return, an exception or a signal."""

import atexit, ctypes, os, signal, subprocess, sys

# What asks a program to end.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# How long a child may take to end after SIGTERM; then it is killed.
ENDING_TIME_S = 10

PR_SET_PDEATHSIG = 1

LIBC = ctypes.CDLL(None, use_errno=True)
started = []

# Between the start of a child and its place in the list, a signal waits here.
is_starting, waiting = False, []


def leave(number, _):
    """A signal is an exit, so that every `with` and `finally` is left as usual. Further signals do not interrupt that."""
    if is_starting:
        waiting.append(number)
        return
    for ending in ENDING:
        signal.signal(ending, signal.SIG_IGN)
    sys.exit(128 + number)


def end_on_signals():
    for ending in ENDING:
        signal.signal(ending, leave)


def start(command, prepare=None, **more):
    """`subprocess.Popen` in a process group of its own, ended with this program. `prepare` runs in the child."""
    parent = os.getpid()

    def begin():
        # For a program that is killed. Servers with worker processes end these themselves.
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
        for ending in ENDING:
            signal.signal(ending, signal.SIG_DFL)
        if prepare:
            prepare()

    global is_starting
    is_starting = True
    try:
        process = subprocess.Popen(command, preexec_fn=begin, start_new_session=True, **more)
        started.append(process)
    finally:
        is_starting = False
        if waiting:
            leave(waiting[0], None)
    return process


def stop(process, number=signal.SIGTERM):
    """Ends a child and its group, and waits for it."""
    if process in started:
        started.remove(process)
    if process.poll() is not None:
        return
    os.killpg(process.pid, number)
    try:
        process.wait(ENDING_TIME_S)
    except subprocess.TimeoutExpired:
        pass
    try:
        # What of its group has not ended with it.
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@atexit.register
def stop_all():
    for ending in ENDING:
        signal.signal(ending, signal.SIG_IGN)
    for process in started[::-1]:
        stop(process)
