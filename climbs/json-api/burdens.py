"""burdens.py PID: until that process ends, audit is switched on, and a packet socket is open whose filter accepts nothing, like that of
dhclient. Both are then as before; if this process is killed by SIGKILL, audit stays on: auditctl -e 0."""

import ctypes, os, select, signal, socket, struct, sys

import audit

SO_ATTACH_FILTER, ETH_P_ALL = 26, 3
RETURN_0 = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))


def wait_for_end(pid):
    process = os.pidfd_open(pid)
    while not select.select([process], [], [])[0]:
        pass


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: sys.exit())
state = audit.is_on()
try:
    if state == 0:
        audit.switch(1)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(RETURN_0)))
        wait_for_end(int(sys.argv[1]))
finally:
    if state == 0:
        audit.switch(0)
