"""Compose the wheel: upstream's, with the set put in."""

import email
import email.policy
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import REQUIRES, ROOT, PatchsetError, hooks, native, plan, upstream

_POLICY = email.policy.compat32.clone(max_line_length=0)  # headers are not to be folded anew


def compose(dist: Path, platform: str | None = None, python_version: str | None = None, root: Path = ROOT) -> Path:
    """Write the composed wheel into ``dist`` and return its path.

    The target is the running interpreter, or ``platform`` (a wheel's platform tag) and ``python_version`` ("3.12").
    """
    if importlib.util.find_spec("wheel") is None:
        raise ModuleNotFoundError("wheel", name="wheel")
    wheel = upstream.fetch(platform, python_version)
    if (root / "CMakeLists.txt").is_file():
        native.require_compiler(wheel.stem.rpartition("-")[2])
    with tempfile.TemporaryDirectory() as directory:
        _wheel("unpack", "--dest", directory, wheel)
        (unpacked,) = Path(directory).iterdir()
        _put_in(unpacked / "executorch", upstream.Pristine(wheel), root)
        if (root / "CMakeLists.txt").is_file():
            native.build(unpacked, wheel.stem.rpartition("-")[2])
        (info,) = unpacked.glob("*.dist-info")
        rewrite_metadata(info)
        dist.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=dist) as packed:
            _wheel("pack", "--dest-dir", packed, unpacked)
            (result,) = Path(packed).iterdir()
            return result.replace(dist / result.name)


def _put_in(tree: Path, pristine: upstream.Pristine, root: Path) -> None:
    new = plan.new_files(root)
    plan.refuse_shipped(new, pristine.files)
    plan.refuse_uncompilable(new)
    inserts = hooks.by_file(hooks.load(root / "hooks"), source_only=False)
    for file, content in plan.rewritten(inserts, pristine.files, pristine.read).items():
        (tree / file).write_bytes(content)
    for file, source in new.items():
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, tree / file)


def rewrite_metadata(info: Path) -> Path:
    """Turn upstream's .dist-info directory into that of the composed wheel; returns its new path."""
    metadata = info / "METADATA"
    message = email.message_from_bytes(metadata.read_bytes(), policy=_POLICY)
    message.replace_header("Version", upstream.version())
    for requirement in REQUIRES:
        message["Requires-Dist"] = requirement
    metadata.write_bytes(message.as_bytes())
    return info.rename(info.with_name(f"{upstream.read_lock()[0]}-{upstream.version()}.dist-info"))


def _wheel(command: str, *arguments: str | Path) -> None:
    environment = {"SOURCE_DATE_EPOCH": "315532800"} | os.environ  # the same input gives the same bytes
    run = subprocess.run(
        [sys.executable, "-m", "wheel", command, *map(str, arguments)], env=environment, capture_output=True, text=True
    )
    if run.returncode:
        raise PatchsetError(f"wheel {command}: {(run.stderr.strip() or run.stdout.strip()).splitlines()[-1]}")
