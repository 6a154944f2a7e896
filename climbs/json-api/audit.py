"""The audit subsystem by netlink: whether it is on, and the rule that exempts new processes (`auditctl -a never,task`)."""

import errno, os, socket, struct

NETLINK_AUDIT, GET, SET, ADD_RULE, DELETE_RULE = 9, 1000, 1001, 1011, 1012
ERROR, REQUEST, ACK = 2, 1, 4
HEADER = struct.Struct("=IHHII")
STATUS = struct.Struct("=10I")
MASK_ENABLED = 1
LIST_TASK = 1
RULE_BYTES = 4 * (3 + 64 + 3 * 64 + 1)


def ask(kind, body=b"", flags=REQUEST):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_AUDIT) as kernel:
        kernel.send(HEADER.pack(HEADER.size + len(body), kind, flags, 1, 0) + body)
        answer = kernel.recv(1 << 16)
    if HEADER.unpack_from(answer)[1] == ERROR:
        code = -struct.unpack_from("=i", answer, HEADER.size)[0]
        if code:
            raise OSError(code, f"audit message {kind}: {os.strerror(code)}")
    return answer[HEADER.size :]


def is_on():
    return STATUS.unpack_from(ask(GET).ljust(STATUS.size, b"\0"))[1]


def switch(state):
    ask(SET, STATUS.pack(MASK_ENABLED, state, *[0] * 8), REQUEST | ACK)


def exempt_new_processes(wanted):
    """Returns whether that has changed anything: a rule that was there already is not ours to delete."""
    rule = struct.pack("=II", LIST_TASK, 0).ljust(RULE_BYTES, b"\0")
    try:
        ask(ADD_RULE if wanted else DELETE_RULE, rule, REQUEST | ACK)
    except OSError as error:
        if error.errno != (errno.EEXIST if wanted else errno.ENOENT):
            raise
        return False
    return True
