"""Write the set as commits, one per concern, onto a source checkout of upstream."""

import os
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Collection
from pathlib import Path

from . import ROOT, PatchsetError, hooks, order, plan


def commits(
    loaded: list[hooks.Hook], shipped: Collection[str], read: Callable[[str], bytes], root: Path = ROOT
) -> list[tuple[str, dict[str, bytes]]]:
    """Message and changed files of each commit; one that imports what another brings comes behind it.

    What only the wheel needs is left out. ``read`` gives the bytes of a ``shipped`` file of the checkout. Every
    insertion is located in the checkout's own text, so the commits do not see each other, and the last state of a file
    is that of all of them together.
    """
    new = plan.new_files(root)
    plan.refuse_shipped(new, shipped)
    plan.refuse_uncompilable(new)
    owners = plan.owners(loaded, new)
    result = []
    committed = []
    for hook in order.ordered(loaded, owners, new, shipped, read):
        committed.append(hook)
        inserts = hooks.by_file([h for h in loaded if h in committed], source_only=True)
        touched = {insert.file for insert in hook.inserts}
        changed = plan.rewritten({f: i for f, i in inserts.items() if f in touched}, shipped, read)
        changed |= {file: new[file].read_bytes() for file, owner in owners.items() if owner is hook}
        result.append((message(hook), changed))
    return result


def message(hook: hooks.Hook) -> str:
    body = [hook.why, f"Upstream: {hook.upstream}", f"Remove when: {hook.remove_when}"]
    return "\n\n".join([" ".join(hook.title.split()), *(textwrap.fill(" ".join(t.split()), 72) for t in body)]) + "\n"


def export(loaded: list[hooks.Hook], checkout: Path, root: Path = ROOT) -> list[str]:
    """Commit the set onto the branch of ``checkout``; returns the new commits' ids.

    The commits are made beside the checkout, which moves to the last of them only when all are there. Raises
    PatchsetError when ``checkout`` is not the top of a clean git checkout or the set does not apply to it.
    """
    if not (checkout / ".git").exists():
        raise PatchsetError(f"{checkout}: not the top of a git checkout")
    if _git(checkout, "status", "--porcelain"):
        raise PatchsetError(f"{checkout}: has changes or untracked files; commit or remove them first")
    listing = _git(checkout, "ls-tree", "-r", "-z", "HEAD").decode().split("\0")[:-1]
    modes = {name: entry.split()[0] for entry, _, name in (line.partition("\t") for line in listing)}
    planned = commits(loaded, modes, lambda file: _git(checkout, "cat-file", "blob", f"HEAD:{file}"), root)

    parent = _git(checkout, "rev-parse", "HEAD").decode().strip()
    made = []
    with tempfile.TemporaryDirectory() as directory:
        index = {"GIT_INDEX_FILE": os.path.join(directory, "index")}
        _git(checkout, "read-tree", parent, env=index)
        for text, files in planned:
            for file, content in files.items():
                blob = _git(checkout, "hash-object", "-w", "--stdin", stdin=content).decode().strip()
                entry = f"{modes.get(file, '100644')},{blob},{file}"
                _git(checkout, "update-index", "--add", "--cacheinfo", entry, env=index)
            tree = _git(checkout, "write-tree", env=index).decode().strip()
            parent = _git(checkout, "commit-tree", tree, "-p", parent, stdin=text.encode()).decode().strip()
            made.append(parent)
    _git(checkout, "merge", "--ff-only", "--no-overwrite-ignore", "--quiet", parent)
    return made


def _git(checkout: Path, *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> bytes:
    command = ["git", "-C", str(checkout), *arguments]
    try:
        run = subprocess.run(command, input=stdin, capture_output=True, env=os.environ | (env or {}))
    except FileNotFoundError:
        raise PatchsetError("git is not installed") from None
    if run.returncode:
        lines = [line for line in run.stderr.decode(errors="replace").splitlines() if line.strip()]
        raise PatchsetError(f"git {arguments[0]}: {lines[-1] if lines else run.returncode}")
    return run.stdout
