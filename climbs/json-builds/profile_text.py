#!/usr/bin/env python3
"""Raw profiles of rustc's LLVM as text that an older llvm-profdata merges: profile_text.py PROFILE.profraw… > PROFILE.txt

A raw profile has the layout of the LLVM that wrote it, and only that version's llvm-profdata reads it. rustup has a matching one
(`rustup component add llvm-tools`); Linux distributions have older ones. The text format did not change, and every LLVM reads the
indexed files of older ones.

Only counters of blocks are converted. What was called through pointers and how long copies were (value profiles) is left out, so
calls through pointers are not inlined.

Source: the layout is in LLVM's include/llvm/ProfileData/InstrProfData.inc, the text format in `llvm-profdata merge --text`.
"""

import hashlib
import struct
import sys
import zlib

MAGIC = 0xFF6C70726F667281  # "\xfflprofr\x81" of a 64-bit program
VERSIONS = (9, 10)  # LLVM 18 and newer; rustc 1.78 and newer
OF_BLOCKS = 1 << 56  # the flag of -Cprofile-generate; -Cinstrument-coverage does not have it
HEADER = struct.Struct("<16Q")
RECORD_BYTES = 64
RECORD = struct.Struct("<6QI")  # name, hash, counters, bitmap, function, values, number of counters; the rest is not used


def mistake(path, got, wanted):
    sys.exit(f"{path}: {got}; {wanted}")


def names_of(section):
    """The functions' names, by the first eight bytes of their MD5."""
    names, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = section[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(section):
        if section[at] == 0:  # padding between the parts of several object files
            at += 1
            continue
        plain, packed = number(), number()
        size = packed or plain
        part = section[at : at + size]
        at += size
        for name in (zlib.decompress(part) if packed else part).split(b"\x01"):
            names[hashlib.md5(name).digest()[:8]] = name
    return names


def functions_of(path):
    """The name, the hash of the shape and the counters of each function."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < HEADER.size:
        mistake(path, f"{len(data)} bytes", f"a raw profile has at least {HEADER.size}")
    head = HEADER.unpack_from(data)
    magic, version, ids, records, before, counters, after, bitmap, after_bitmap, names, delta = head[:11]
    if magic != MAGIC:
        mistake(path, f"it begins with {magic:#x}", f"a raw profile of a 64-bit program begins with {MAGIC:#x}")
    if version & 0xFFFFFFFF not in VERSIONS or not version & OF_BLOCKS:
        mistake(path, f"its version is {version:#x}", f"this reads {VERSIONS} of -Cprofile-generate")
    at_records = HEADER.size + ids
    at_counters = at_records + records * RECORD_BYTES + before
    at_names = at_counters + counters * 8 + after + bitmap + after_bitmap
    if at_names + names > len(data):
        mistake(path, f"{len(data)} bytes", f"its head says at least {at_names + names}: was it still being written?")
    known = names_of(data[at_names : at_names + names])
    for record in range(records):
        at = at_records + record * RECORD_BYTES
        name, shape, pointer, _, _, _, count = RECORD.unpack_from(data, at)
        # The pointer is relative to its record, and `delta` is that of the first one.
        first = at_counters + (pointer - delta + record * RECORD_BYTES) % 2**64
        if first + count * 8 > at_counters + counters * 8:
            mistake(path, f"function {record} has its counters at byte {first}", "they are behind the last one")
        yield known[struct.pack("<Q", name)], shape, struct.unpack_from(f"<{count}Q", data, first)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    total = {}
    for path in sys.argv[1:]:
        for name, shape, counters in functions_of(path):
            known = total.get((name, shape), [0] * len(counters))
            total[name, shape] = [one + other for one, other in zip(known, counters)]
    out = sys.stdout.buffer
    out.write(b":ir\n")
    for (name, shape), counters in sorted(total.items()):
        out.write(b"\n".join([name, b"%d" % shape, b"%d" % len(counters), *(b"%d" % count for count in counters)]) + b"\n\n")


if __name__ == "__main__":
    main()
