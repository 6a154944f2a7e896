"""A packet tap, as DHCP clients and monitoring agents hold one: the kernel hands it a copy of every packet."""

import os, socket, threading

tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
parent = os.getppid()


def end_with_parent():
    while os.getppid() == parent:
        threading.Event().wait(0.2)
    os._exit(0)


threading.Thread(target=end_with_parent, daemon=True).start()
buffer = bytearray(1 << 16)
while True:
    tap.recv_into(buffer)
