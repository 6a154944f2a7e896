#!/usr/bin/env python3
"""coverage.py EXPORT CRATE...: a table of the lines and functions that were reached, from what `llvm-cov export` has written, and a list of the functions
that were not. A generic function is reached if one of its instances is. Code of tests is not compiled in and does not count."""

import collections, json, pathlib, re, sys

ROOT = pathlib.Path.cwd()


def crate_of(path):
    """The crate of a file of ours, and the file's path; `None` for other files."""
    parts = pathlib.Path(path).parts
    if "crates" not in parts:
        return None
    at = len(parts) - 1 - parts[::-1].index("crates")
    return parts[at + 1], "/".join(parts[at:])


def name_of(path, line):
    """The name of the function that begins at this line; `None` for a closure."""
    lines = (ROOT / path).read_text().splitlines()
    for text in lines[line - 1 : line + 2]:
        if found := re.search(r"fn (\w+)", text):
            return found[1]
    return None


def main():
    export, crates = json.load(open(sys.argv[1]))["data"][0], sys.argv[2:]
    lines = {crate: [0, 0] for crate in crates}
    for file in export["files"]:
        place = crate_of(file["filename"])
        if place and place[0] in lines:
            summary = file["summary"]["lines"]
            lines[place[0]][0] += summary["covered"]
            lines[place[0]][1] += summary["count"]
    # By their places: instances of one function have the same.
    counts = collections.Counter()
    for function in export["functions"]:
        place = crate_of(function["filenames"][0])
        if place and place[0] in lines:
            counts[(place[0], place[1], function["regions"][0][0])] += function["count"]
    print("| crate | lines reached | of | functions reached | of |")
    print("|---|---:|---:|---:|---:|")
    for crate in crates:
        of_crate = [count for (of, *_), count in counts.items() if of == crate]
        reached = sum(count > 0 for count in of_crate)
        covered, all_lines = lines[crate]
        share = 100 * covered / max(all_lines, 1)
        print(f"| {crate} | {covered} ({share:.0f} %) | {all_lines} | {reached} | {len(of_crate)} |")
    print("\nNever reached:")
    for (_, path, line), count in sorted(counts.items()):
        if count == 0 and (name := name_of(path, line)):
            print(f"{path}:{line} {name}")


main()
