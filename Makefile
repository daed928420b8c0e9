# make demo, make test: .venv with the patched ExecuTorch, then the main job or the tests.
PYTHON ?= python3
WORKERS ?= 2

PY := .venv/bin/python
LOG := build/install.log
COMPILED := $(wildcard CMakeLists.txt) $(shell find backends/xnnpack/runtime -type f ! -name README.md 2>/dev/null)
FAIL = { echo "error: $(1)" >&2; exit 1; }

UPSTREAM := executorch.backends.xnnpack.test.ops.test_conv1d \
  executorch.backends.xnnpack.test.ops.test_conv2d \
  executorch.backends.xnnpack.test.ops.test_linear \
  executorch.backends.xnnpack.test.test_xnnpack_partitioner \
  executorch.exir.tests.test_passes \
  executorch.exir.tests.test_partitioner_pre_decomposition \
  executorch.exir.program.test.test_fake_program \
  executorch.exir.program.test.test_program
SUITES := passes ops serialization quantizer test_xnnpack_partitioner.py

# Two workers share the cores.
test upstream-suite: export OMP_NUM_THREADS = 1

.PHONY: demo test test-ours test-upstream upstream-suite link clean
.DELETE_ON_ERROR:

demo: link
	@$(PY) -m benchmarks.positional_conv

test: test-ours test-upstream

test-ours: link
	$(PY) -m pytest -n $(WORKERS) --dist worksteal

# The suites of the installed package, unchanged; the plugin only spares repeated work (half to two thirds of the
# time). Byte code and cache would be left in the package. Some compare unseeded random numbers within a tolerance, so
# a failure is repeated before it counts.
INSTALLED = $$(echo .venv/lib/python3*/site-packages/executorch)
PYTEST_INSTALLED = PYTHONDONTWRITEBYTECODE=1 $(PY) -m pytest -n $(WORKERS) --dist worksteal --reruns 2 -p no:cacheprovider \
  -p patchset.pytest_memo -c /dev/null --rootdir=$(INSTALLED) $$(grep -v '^\#' upstream-known-failures.txt)

test-upstream: link
	$(PYTEST_INSTALLED) --pyargs $(UPSTREAM)

# All of upstream's suites for the backend; links are the patch set's own tests. Some three quarters of an hour.
upstream-suite: link
	$(PYTEST_INSTALLED) $$(find $(addprefix $(INSTALLED)/backends/xnnpack/test/,$(SUITES)) -name 'test_*.py' -type f)
	$(PYTEST_INSTALLED) -m backend_xnnpack \
	  $(addprefix $(INSTALLED)/backends/test/suite/operators/,test_conv2d.py test_convtranspose2d.py)

# New files and hooks of the checkout are brought into .venv every time; it takes a second.
link: .venv/installed
	@$(PY) -m patchset link

.venv/installed: upstream.lock pyproject.toml setup.py requirements-dev.txt patchset/__init__.py patchset/compose.py \
    patchset/native.py $(COMPILED)
	@command -v $(PYTHON) >/dev/null || $(call FAIL,$(PYTHON) is not installed; Python 3.10 to 3.14 is needed)
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' || \
	  $(call FAIL,Python 3.10 to 3.14 is needed and $(PYTHON) is another; make PYTHON=... names one)
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  $(call FAIL,$(PYTHON) has no venv module (Debian: the package python3-venv))
	@test "$$(uname -s)" != Linux || command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || \
	  command -v clang++ >/dev/null || $(call FAIL,a C++ compiler is needed (Debian: the package g++))
	@mkdir -p build
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@PIP_RETRIES=$${PIP_RETRIES:-0} PIP_TIMEOUT=$${PIP_TIMEOUT:-10} $(PY) -m pip download -q --no-deps -d build/probe packaging \
	  >$(LOG) 2>&1 || $(call FAIL,pip gets nothing from its index: no network or a wrong index (pip config list; $(LOG)))
	@echo "Installing the patched ExecuTorch and the test requirements into .venv (minutes; $(LOG) has the progress)"
	@$(PY) -m pip install . -r requirements-dev.txt >$(LOG) 2>&1 || \
	  $(call FAIL,$$( { grep -m1 -o 'patchset: .*' $(LOG) || sed -n 's/.*ERROR:  */pip: /p' $(LOG) | tail -1; } | sed 's/ *$$//') (whole log: $(LOG)))
	@touch $@

clean:
	rm -rf .venv build
	find . -name __pycache__ -prune -exec rm -rf {} +
