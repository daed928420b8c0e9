import sysconfig

import pytest
from executorch.backends.xnnpack.test.runtime.native_build import (
    leave_out,
    PACKAGE,
    patchset_module,
)

# What the sanitizers find ends the process.
_SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=all"


@pytest.fixture(scope="session")
def package():
    """The installed package, with the native library."""
    platform = sysconfig.get_platform()
    if patchset_module("native").machine(platform) is None:
        pytest.skip(f"there is no native library for {platform}")
    if not (PACKAGE / "lib" / "libexecutorch_backend_xnnpack_base.so").exists():
        leave_out("the installed executorch was composed without native library")
    return PACKAGE


def _build(package, directory, target, flags=""):
    native = patchset_module("native")
    native.cmake(package, directory, sysconfig.get_platform(), [target], flags)


@pytest.fixture(scope="session")
def runner(package, tmp_path_factory):
    """Path of executor_runner."""
    directory = tmp_path_factory.mktemp("native")
    _build(package, directory, "executor_runner")
    return directory / "executor_runner"


@pytest.fixture(scope="session")
def payload_check(package, tmp_path_factory):
    """Path of payload_check, it and a drop-in library under sanitizers."""
    directory = tmp_path_factory.mktemp("sanitized")
    _build(package, directory, "payload_check", _SANITIZE)
    return directory / "dropin" / "payload_check"
