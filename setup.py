"""Builds the composed wheel in place of one made from sources."""

import shutil
import sys
import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.dist_info import dist_info
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist
from setuptools.errors import BaseError

sys.path.insert(0, str(Path(__file__).resolve().parent))

from patchset import PatchsetError, upstream
from patchset.compose import compose, rewrite_metadata


class BuildError(BaseError):
    """setuptools prints it as one line."""


class ComposedWheel(bdist_wheel):
    def run(self):
        try:
            compose(Path(self.dist_dir))
        except PatchsetError as error:
            raise BuildError(f"patchset: {error}") from error


class ComposedDistInfo(dist_info):
    def run(self):
        super().run()
        shutil.rmtree(self.dist_info_dir)
        try:
            with zipfile.ZipFile(upstream.fetch()) as wheel:
                names = [n for n in wheel.namelist() if ".dist-info/" in n and not n.endswith("/RECORD")]
                wheel.extractall(self.output_dir, names)
        except PatchsetError as error:
            raise BuildError(f"patchset: {error}") from error
        rewrite_metadata(Path(self.output_dir, names[0].partition("/")[0]))


class Refusal:
    def run(self):
        raise BuildError("patchset: only wheels are built; python -m patchset link serves for editing in place")


class NoSources(Refusal, sdist): ...


class NoEditable(Refusal, editable_wheel): ...


Path("build").mkdir(exist_ok=True)
setup(
    name=upstream.read_lock()[0],
    version=upstream.version(),
    packages=[],
    options={"egg_info": {"egg_base": "build"}},
    cmdclass={
        "bdist_wheel": ComposedWheel,
        "dist_info": ComposedDistInfo,
        "sdist": NoSources,
        "editable_wheel": NoEditable,
    },
)
