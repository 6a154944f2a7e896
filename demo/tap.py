"""A packet tap, as DHCP clients hold one: the kernel hands it a copy of every packet, which it never looks at."""

import os, socket, time

tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(0.2)
