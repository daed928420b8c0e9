"""What the set does to an upstream tree: new files and rewritten files, verified."""

import fnmatch
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from . import ROOT, PatchsetError, hooks
from .hooks import Hook, Insert

_TREES = ("backends", "exir")
_FLATC = "data/bin/flatc"  # where the upstream wheel has its own
_SKIPPED = ("__pycache__", "*.pyc", ".*", "BUCK", "TARGETS")


def new_files(root: Path = ROOT) -> dict[str, Path]:
    """The files of the set's own trees, by in-tree path."""
    paths = sorted(p for tree in _TREES for p in (root / tree).rglob("*") if p.is_file())
    result = {p.relative_to(root).as_posix(): p for p in paths}
    return {n: p for n, p in result.items() if not any(fnmatch.fnmatch(x, s) for x in Path(n).parts for s in _SKIPPED)}


def refuse_shipped(new: Iterable[str], shipped: Collection[str]) -> None:
    for file in new:
        if file in shipped:
            raise PatchsetError(f"{file}: a new file of the set, but upstream ships it")


def refuse_uncompilable(new: dict[str, Path]) -> None:
    for file, path in new.items():
        if file.endswith(".py"):
            try:
                compile(path.read_bytes(), file, "exec", dont_inherit=True)
            except SyntaxError as error:
                raise PatchsetError(f"{file}: does not compile: {error.msg}, line {error.lineno}") from None


def rewritten(
    inserts: dict[str, list[Insert]], shipped: Collection[str], read: Callable[[str], bytes]
) -> dict[str, bytes]:
    """The hooked files after insertion; ``read`` gives the pristine bytes of one of the ``shipped`` files.

    Raises PatchsetError when an insertion does not apply or its result does not compile.
    """
    result = {}
    for file, entries in inserts.items():
        if file not in shipped:
            raise entries[0].error("upstream has no such file")
        result[file] = hooks.apply(read(file).decode("utf-8"), entries).encode("utf-8")
    for file, content in result.items():
        if file.endswith(".py"):
            _compile(content, file, inserts[file])
        elif file.endswith(".fbs"):
            folder = os.path.dirname(file)
            schemas = [f for f in shipped if f.endswith(".fbs") and os.path.dirname(f) == folder]
            own = read(_FLATC) if _FLATC in shipped else None
            _flatc(file, {f: result.get(f) or read(f) for f in schemas}, own, inserts[file])
    return result


def _compile(content: bytes, file: str, entries: list[Insert]) -> None:
    try:
        compile(content, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _blame(entries, f"{file} does not compile after insertion: {error.msg}, line {error.lineno}") from None


def _flatc(file: str, schemas: dict[str, bytes], own: bytes | None, entries: list[Insert]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        flatc = _find_flatc(own, Path(directory))
        if not flatc:
            raise PatchsetError(f"{file}: no flatc to check it with (pip install flatc)")
        for name, content in schemas.items():
            Path(directory, os.path.basename(name)).write_bytes(content)
        command = [flatc, "--binary", "--schema", "-o", directory, os.path.join(directory, os.path.basename(file))]
        run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        lines = [line.strip() for line in (run.stderr + run.stdout).replace(directory + os.sep, "").splitlines()]
        raise _blame(entries, f"flatc refuses {file} after insertion: {next(filter(None, lines), run.returncode)}")


def _find_flatc(own: bytes | None, directory: Path) -> str | None:
    """The wheel's ``own`` flatc, which is for another machine when composing across, else an installed one."""
    if own:
        (directory / "flatc").write_bytes(own)
        (directory / "flatc").chmod(0o755)
    scripts = sysconfig.get_path("scripts")
    for flatc in (str(directory / "flatc"), shutil.which("flatc"), shutil.which("flatc", path=scripts)):
        try:
            if flatc and not subprocess.run([flatc, "--version"], capture_output=True).returncode:
                return flatc
        except OSError:
            continue
    return None


def _blame(entries: list[Insert], reason: str) -> PatchsetError:
    """An error of the first entry; the other hooks of the file are named, as any of them may be at fault."""
    others = sorted({e.hook for e in entries} - {entries[0].hook})
    return entries[0].error(reason + (f" (also hooked by {', '.join(others)})" if others else ""))


def owners(loaded: list[Hook], new: Iterable[str]) -> dict[str, Hook]:
    """The hook file to which each new file belongs; raises PatchsetError unless it is exactly one."""
    result = {}
    for file in new:
        found = [hook for hook in loaded if any(fnmatch.fnmatchcase(file, pattern) for pattern in hook.files)]
        if len(found) != 1:
            names = ", ".join(hook.name for hook in found) or "no hook file"
            raise PatchsetError(f"{file}: must belong to one hook file (key files), belongs to {names}")
        result[file] = found[0]
    for hook in loaded:
        for pattern in hook.files:
            if not any(owner is hook and fnmatch.fnmatchcase(file, pattern) for file, owner in result.items()):
                raise PatchsetError(f"{hook.name}: files: {pattern!r} matches no new file")
    return result
