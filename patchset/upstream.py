"""The pristine upstream wheel, fetched by pip and checked against upstream.lock."""

import hashlib
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from . import REVISION, ROOT, PatchsetError

LOCK = ROOT / "upstream.lock"
CACHE = ROOT / "build" / "upstream"


def read_lock() -> tuple[str, str, set[str]]:
    """Name and version of the pinned release, and the sha256 of each of its wheels."""
    words = [w for line in LOCK.read_text("utf-8").splitlines() if not line.startswith("#") for w in line.split()]
    requirement = Requirement(words[0])
    version = str(requirement.specifier).removeprefix("==")
    return requirement.name, version, {w.rpartition(":")[2] for w in words if w.startswith("--hash=sha256:")}


def version() -> str:
    """The version of the composed wheel."""
    return f"{read_lock()[1]}+xnnpack.{REVISION}"


def fetch(platform: str | None = None, python_version: str | None = None) -> Path:
    """The pinned wheel for the running interpreter, or for another target; from the cache once it is there.

    ``EXECUTORCH_WHEEL`` names a file to take instead of asking pip. Raises PatchsetError without a wheel that
    upstream.lock lists.
    """
    given = os.environ.get("EXECUTORCH_WHEEL")
    if given:
        if platform and not given.endswith(f"{platform}.whl"):
            raise PatchsetError(f"EXECUTORCH_WHEEL is not a wheel for {platform}: {given}")
        return _checked(Path(given))
    python = python_version or "{}.{}".format(*sys.version_info)
    target = CACHE / f"{read_lock()[1]}-py{python}-{platform or sysconfig.get_platform()}"
    cached = sorted(target.glob("*.whl"))
    if len(cached) == 1:
        return _checked(cached[0])
    options = ["--platform", platform] if platform else []
    options += ["--python-version", python_version] if python_version else []
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *options]
    run = subprocess.run(
        [*command, "--require-hashes", "-r", str(LOCK), "-d", str(target)], capture_output=True, text=True
    )
    found = sorted(target.glob("*.whl"))
    if run.returncode or len(found) != 1:
        lines = [line.strip() for line in run.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")] or lines
        raise PatchsetError(f"pip cannot download the wheel of upstream.lock: {errors[-1] if errors else 'no wheel'}")
    return _checked(found[0])


def _checked(wheel: Path) -> Path:
    name, pinned, hashes = read_lock()
    if not wheel.is_file():
        raise PatchsetError(f"{wheel}: no such wheel")
    if hashlib.sha256(wheel.read_bytes()).hexdigest() not in hashes:
        raise PatchsetError(f"{wheel}: sha256 is not one that upstream.lock lists for {name}=={pinned}")
    try:
        named = tuple(map(str, parse_wheel_filename(wheel.name)[:2]))
    except InvalidWheelFilename:
        named = None
    if named != (name, pinned):
        raise PatchsetError(f"{wheel}: file name is not that of a wheel of {name}=={pinned}")
    return wheel


class Pristine:
    """The files of the upstream wheel, by in-tree path (without the leading ``executorch/``)."""

    def __init__(self, wheel: Path):
        self._zip = zipfile.ZipFile(wheel)
        names = [name for name in self._zip.namelist() if not name.endswith("/")]
        self.files = {name.removeprefix("executorch/") for name in names if name.startswith("executorch/")}

    def read(self, file: str) -> bytes:
        return self._zip.read(f"executorch/{file}")

    def record(self) -> str:
        """The text of RECORD."""
        return self._zip.read(next(n for n in self._zip.namelist() if n.endswith(".dist-info/RECORD"))).decode()
