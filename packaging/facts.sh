# Facts of a package, for the scripts beside it: its version and commit, and the time and the permissions that its files get.
# shellcheck shell=sh disable=SC2034
version=$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# The commit's time, or that of a copy without Git.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1767225600)}
# The same in `flatout --version`.
FLATOUT_SOURCE_COMMIT=${FLATOUT_SOURCE_COMMIT:-$(git log -1 --format='%h %cs' --abbrev=10 2>/dev/null || true)}
export SOURCE_DATE_EPOCH FLATOUT_SOURCE_COMMIT
# Folders of a package are for everybody, whatever the caller's own files are.
umask 022
# The same times for all files of a folder.
settle() {
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}
