"""A folder as a slow network volume has it: `slow_mount.py FOLDER MOUNT DELAY_MS BYTES_PER_S`. Each operation takes the delay, and all reads
share the rate. Attributes are remembered for three seconds, as NFS does. Runs until it is unmounted; read-only."""

import errno, os, sys, threading, time

from fusepy import FUSE, FuseOSError, Operations

ATTRIBUTES_S = 3


class Slow(Operations):
    def __init__(self, root, delay_s, bytes_per_s):
        self.root, self.delay_s, self.bytes_per_s = root, delay_s, bytes_per_s
        self.turn, self.free_at = threading.Lock(), 0.0

    def __call__(self, name, path, *arguments):
        time.sleep(self.delay_s)
        try:
            return getattr(self, name)(self.root + path, *arguments)
        except AttributeError:
            raise FuseOSError(errno.ENOSYS) from None

    def getattr(self, path, _=None):
        found = os.lstat(path)
        return {key: getattr(found, key) for key in ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_mtime", "st_atime", "st_ctime", "st_ino")}

    def readdir(self, path, _):
        return [".", "..", *os.listdir(path)]

    def open(self, path, _):
        return os.open(path, os.O_RDONLY)

    def read(self, _path, count, offset, file):
        read = os.pread(file, count, offset)
        with self.turn:
            self.free_at = max(self.free_at, time.monotonic()) + len(read) / self.bytes_per_s
            wait = self.free_at - time.monotonic()
        time.sleep(max(0, wait))
        return read

    def release(self, _path, file):
        os.close(file)

    def statfs(self, path):
        found = os.statvfs(path)
        return {key: getattr(found, key) for key in ("f_bsize", "f_blocks", "f_bavail", "f_bfree", "f_files", "f_namemax", "f_frsize")}

    # Nothing to be slow about.
    init = destroy = lambda self, *_: None


if __name__ == "__main__":
    folder, mount, delay_ms, bytes_per_s = sys.argv[1:]
    FUSE(Slow(folder, int(delay_ms) / 1000, int(bytes_per_s)), mount, foreground=True, ro=True, auto_cache=True, allow_other=True,
         use_ino=True, attr_timeout=ATTRIBUTES_S, entry_timeout=ATTRIBUTES_S, negative_timeout=0)
