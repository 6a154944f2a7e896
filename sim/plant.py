#!/usr/bin/env python3
"""plant.py SOURCES PATCH...: plants many defects in one copy of the sources, each behind a switch, so that one build shows all of them.

A patch that changes only the inside of functions becomes another body of each of these functions:

    fn judge(&self) -> Verdict {            fn judge(&self) -> Verdict {
        if self.is_fresh() {          ─>        if IS_PLANTED {            SIM_DEFECT=NAME in the environment
            ...                                     the patched body
        }                                       } else {
    }                                               the body as it is
                                                }
                                            }

Prints the names of the patches that were planted, one a line. The others change something else and have to be built alone; why is on
stderr.
"""

import pathlib, re, subprocess, sys, tempfile

FUNCTION = re.compile(r"^(\s*)(?:pub(?:\([^)]*\))? )?(?:async )?fn \w+")


class Alone(Exception):
    """This patch has to be built alone."""


def pieces(text):
    """A file as text between functions, which are (head, body, end)."""
    lines, found, between, at = text.splitlines(keepends=True), [], [], 0
    while at < len(lines):
        function = FUNCTION.match(lines[at])
        head_end = next((it for it in range(at, len(lines)) if lines[it].rstrip()[-1:] in ("{", ";", "}")), None)
        if not function or head_end is None or not lines[head_end].rstrip().endswith("{"):
            between.append(lines[at])
            at += 1
            continue
        last = function[1] + "}"
        end = next((it for it in range(head_end, len(lines)) if lines[it].rstrip() == last), None)
        if end is None:
            raise Alone("a function without an end")
        found += ["".join(between), ("".join(lines[at : head_end + 1]), "".join(lines[head_end + 1 : end]), lines[end])]
        between, at = [], end + 1
    return found + ["".join(between)]


def switch(name):
    return (
        "{ static IS_PLANTED: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| "
        f'std::env::var("SIM_DEFECT").is_ok_and(|planted| planted == "{name}")); *IS_PLANTED }}'
    )


def changed_bodies(before, after):
    """The functions whose bodies differ, by their place."""
    if len(before) != len(after):
        raise Alone("it adds or removes a function")
    changed = {}
    for at, (old, new) in enumerate(zip(before, after)):
        if old == new:
            continue
        if isinstance(old, str) or isinstance(new, str) or (old[0], old[2]) != (new[0], new[2]):
            raise Alone("it changes more than the inside of functions")
        if "-> impl" in old[0]:
            raise Alone("its function returns a type without a name")
        changed[at] = new[1]
    return changed


def patched(sources, patch, path):
    """A file of the sources as it is with this patch alone."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, path)
        copy.parent.mkdir(parents=True)
        copy.write_text(pathlib.Path(sources, path).read_text())
        applied = subprocess.run(
            ["git", "apply", f"--include={path}", str(patch)], cwd=folder, capture_output=True, text=True
        )
        if applied.returncode != 0:
            raise Alone(f"the patch does not apply: {applied.stderr.strip()}")
        return copy.read_text()


def main():
    sources, patches = sys.argv[1], [pathlib.Path(name).resolve() for name in sys.argv[2:]]
    # For each file its pieces, and for each of its functions the defects with their bodies.
    files, defects = {}, {}
    for patch in patches:
        try:
            paths = re.findall(r"^\+\+\+ b/(.*)$", patch.read_text(), re.MULTILINE)
            found = {}
            for path in paths:
                files.setdefault(path, pieces(pathlib.Path(sources, path).read_text()))
                found[path] = changed_bodies(files[path], pieces(patched(sources, patch, path)))
        except Alone as reason:
            print(f"{patch.stem}: built alone: {reason}", file=sys.stderr)
            continue
        for path, bodies in found.items():
            for at, body in bodies.items():
                defects.setdefault(path, {}).setdefault(at, []).append((patch.stem, body))
        print(patch.stem)
    for path, functions in defects.items():
        out = []
        for at, piece in enumerate(files[path]):
            if at not in functions:
                out.append(piece if isinstance(piece, str) else "".join(piece))
                continue
            head, body, end = piece
            out.append(head)
            for name, other in functions[at]:
                out.append(f"if {switch(name)} {{\n{other}}} else ")
            out.append(f"{{\n{body}}}\n{end}")
        pathlib.Path(sources, path).write_text("".join(out))


main()
