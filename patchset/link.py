"""Put the set into an environment that has ExecuTorch installed: edits to new files are live at once."""

import csv
import importlib.metadata
import io
import os
import sysconfig
import tempfile
from pathlib import Path

from . import PatchsetError, hooks, plan, upstream
from .native import OWNED


def link(
    loaded: list[hooks.Hook], pristine: upstream.Pristine, site: Path | None = None, root: Path = plan.ROOT
) -> int:
    """Bring the ExecuTorch of ``site`` (default: the running interpreter's) up to date; returns the number of changes.

    New files become symlinks into ``root``. Hooked files are written from ``pristine``, those whose hook has gone as
    well. Links of files that have gone are removed. Every write goes to a fresh file that replaces the old name, so
    nothing is written through a link. RECORD follows, so that uninstalling removes what was added.
    """
    site = site or Path(sysconfig.get_path("platlib"))
    record, package = _record_of(site), site / "executorch"
    new = plan.new_files(root)
    plan.refuse_shipped(new, pristine.files)
    texts = plan.rewritten(hooks.by_file(loaded, source_only=False), pristine.files, pristine.read)

    rows, stock = _rows(record.read_text("utf-8")), _rows(pristine.record())
    before = dict(rows)
    there = {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_symlink()}
    there |= {name.removeprefix("executorch/") for name in rows if name.startswith("executorch/")}
    stale = {f for f in there - pristine.files - new.keys() if "__pycache__" not in f and not f.startswith(OWNED)}
    for file in stale:
        _remove(package / file)
        rows = {name: row for name, row in rows.items() if not _is_of(name, f"executorch/{file}")}
    restored = {
        file: pristine.read(file)
        for file in pristine.files - texts.keys()
        if not file.startswith(OWNED) and rows.get(f"executorch/{file}") != stock[f"executorch/{file}"]
    }
    changes = sum([_put(package / file, content) for file, content in (new | texts | restored).items()])

    rows |= {name: [name, "", ""] for name in (f"executorch/{file}" for file in new | texts)}
    rows |= {name: stock[name] for name in (f"executorch/{file}" for file in restored)}
    if rows != before:
        text = io.StringIO(newline="")
        csv.writer(text).writerows(rows.values())
        _put(record, text.getvalue().encode("utf-8"))
    return len(stale) + changes


def _record_of(site: Path) -> Path:
    name, pinned, _ = upstream.read_lock()
    found = list(importlib.metadata.distributions(name=name, path=[str(site)]))
    if len(found) != 1 or not (site / "executorch").is_dir() or (site / "executorch").is_symlink():
        raise PatchsetError(f"{site}: {name} is not installed here; install {name}=={pinned} or this checkout first")
    if found[0].version.partition("+xnnpack.")[0] != pinned:
        raise PatchsetError(f"{site}: has {name} {found[0].version}, the set is for {pinned}")
    return Path(found[0].locate_file(f"{name}-{found[0].version}.dist-info/RECORD"))


def _rows(text: str) -> dict[str, list[str]]:
    return {row[0]: row for row in csv.reader(text.splitlines()) if row}


def _is_of(name: str, file: str) -> bool:
    """Whether the RECORD entry ``name`` is ``file`` or its byte code."""
    head, _, stem = file.removesuffix(".py").rpartition("/")
    return name == file or (file.endswith(".py") and name.startswith(f"{head}/__pycache__/{stem}."))


def _put(path: Path, content: Path | bytes) -> bool:
    """Make ``path`` a link to ``content``, or a file with it, in a fresh place unless it is that already."""
    if isinstance(content, Path):
        if path.is_symlink() and os.readlink(path) == str(content):
            return False
    elif path.is_file() and not path.is_symlink() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    _drop_byte_code(path)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        fresh = Path(directory, path.name)
        if isinstance(content, Path):
            fresh.symlink_to(content)
        else:
            fresh.write_bytes(content)
        fresh.replace(path)
    return True


def _remove(path: Path) -> None:
    _drop_byte_code(path)
    path.unlink(missing_ok=True)
    for directory in (path.parent / "__pycache__", path.parent, *path.parent.parents):
        if directory.is_dir():
            if any(directory.iterdir()):
                break
            directory.rmdir()


def _drop_byte_code(path: Path) -> None:
    if path.suffix == ".py":
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            cached.unlink()
