"""A packet tap, as monitoring agents hold one: the kernel copies every packet into a ring, which is emptied now and then.

SIGUSR1 closes it, SIGUSR2 opens it again; it ends with whoever started it.
"""

import mmap, os, signal, socket, struct, time

SOL_PACKET, PACKET_RX_RING, PACKET_VERSION, TPACKET_V3, ETH_P_ALL = 263, 5, 10, 2, 3
BLOCK, BLOCKS, FRAME, RETIRE_MS = 1 << 20, 16, 2048, 60
STATUS, TO_KERNEL = 8, struct.pack("I", 0)
wanted = True


def want(signal_number, _):
    global wanted
    wanted = signal_number == signal.SIGUSR2


def empty(ring):
    for block in range(0, BLOCK * BLOCKS, BLOCK):
        if ring[block + STATUS] & 1:
            ring[block + STATUS : block + STATUS + 4] = TO_KERNEL


def hold():
    """Holds a tap until it is not wanted, or we are not."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as tap:
        tap.setsockopt(SOL_PACKET, PACKET_VERSION, TPACKET_V3)
        blocks = struct.pack("7I", BLOCK, BLOCKS, FRAME, BLOCK // FRAME * BLOCKS, RETIRE_MS, 0, 0)
        tap.setsockopt(SOL_PACKET, PACKET_RX_RING, blocks)
        with mmap.mmap(tap.fileno(), BLOCK * BLOCKS) as ring:
            while wanted and os.getppid() == parent:
                empty(ring)
                time.sleep(0.02)


parent = os.getppid()
signal.signal(signal.SIGUSR1, want)
signal.signal(signal.SIGUSR2, want)
while os.getppid() == parent:
    if wanted:
        hold()
    time.sleep(0.02)
