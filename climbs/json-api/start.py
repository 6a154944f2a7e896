"""start.py COMMAND … [--unaudited] [--unconfined]: the server as the published climb found it: audited, if audit is on, and under a seccomp
filter of the size of Docker's, in the form that libseccomp gave it: a comparison for each allowed system call. The flags leave out one each."""

import ctypes, fcntl, os, platform, re, signal, socket, struct, sys, time

import audit

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, REFUSE = 0x7FFF0000, 0x00050001
CALLS = 460
START_S_MAX = 20


class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def confine():
    load, equal, end = 0x20, 0x15, 0x06
    code = [(load, 0, 0, 4), (equal, 1, 0, ARCHITECTURE[platform.machine()]), (end, 0, 0, REFUSE), (load, 0, 0, 0)]
    for call in range(CALLS):
        code += [(equal, 0, 1, call), (end, 0, 0, ALLOW)]
    code.append((end, 0, 0, REFUSE))
    bytes_of_code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
    program = Program(len(code), ctypes.addressof(bytes_of_code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "seccomp")


def start(command, is_confined):
    child = os.fork()
    if child == 0:
        if is_confined:
            confine()
        os.execvp(command[0], command)
    return child


def wait_until_listening(command):
    port = int(re.search(r":(\d+)", " ".join(command))[1])
    for _ in range(START_S_MAX * 100):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)


flags = {"--unaudited", "--unconfined"}
command = [word for word in sys.argv[1:] if word not in flags]
is_unaudited, is_confined = "--unaudited" in sys.argv, "--unconfined" not in sys.argv
# Whether a thread is audited is decided when it is created. So only one server starts at a time, and the rule is there until it listens.
with open(os.path.abspath(__file__)) as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    is_exempt = is_unaudited and audit.exempt_new_processes(True)
    try:
        server = start(command, is_confined)
        wait_until_listening(command)
    finally:
        if is_exempt:
            audit.exempt_new_processes(False)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(server, 0)[1]) & 255)
