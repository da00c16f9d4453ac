# Every command of the kit; `make` alone lists them. The work is done by Python modules.
.DEFAULT_GOAL := help
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory

# typed NAME: what stands on make's command line; a variable of the environment does not count.
typed = $(if $(filter command,$(origin $(1))),$($(1)))
# An active environment with torch is used and not changed; otherwise .venv, made from the lock.
# PYTHON=python3.13 or TORCH=2.15.0 makes one of its own, by that Python, with that torch.
KIT_OWN := $(addprefix -,$(subst /,-,$(call typed,PYTHON)))$(addprefix -torch-,$(call typed,TORCH))
ifneq ($(if $(KIT_OWN),,$(VIRTUAL_ENV)$(CONDA_PREFIX)),)
FIND_TORCH := import importlib.util as u; exit(not u.find_spec("torch"))
ACTIVE := $(shell python3 -c '$(FIND_TORCH)' && command -v python3)
endif
KIT_VENV := .venv$(KIT_OWN)
PY := $(or $(ACTIVE),$(KIT_VENV)/bin/python)
READY := $(if $(ACTIVE),,$(KIT_VENV)/.ready)
READY_DEV := $(if $(ACTIVE),,$(KIT_VENV)/.ready-dev)
JOBS := $(PY) -m jobs
# The targets for runs are those of `kit init`; Python would wait at its end with PYTHONINSPECT.
KIT := $(JOBS)
KIT_PLUGINS := $(wildcard jobs/plugins/*/*.mk)
include slurm_job_kit/kit.mk
unexport PYTHONINSPECT PYTHONSAFEPATH
ifeq ($(ACTIVE),)
unexport PYTHONHOME PYTHONPLATLIBDIR
endif

##@ Clean, debug
train: ## Plain torchrun on this machine, for a debugger: CONFIG=... [SET=...] [NPROC=2]
train:
	@$(KIT) make $@
$(KIT_TARGETS) train: $(READY)

##@ This clone
setup: $(READY) ## Make the virtual environment .venv from requirements.lock
help-dev: ## List the commands for work on the kit: tests, benchmarks, lint
	@awk -v dev=1 $(KIT_HELP) $(KIT_MK) $(KIT_PLUGINS) Makefile

##@ Work on the kit
test: $(READY_DEV) ## All tests; on a real Slurm where its daemons are installed [COVERAGE=1]
	@$(PYTEST) $(COVER) tests/slurm tests/local tests/plugins tests/core tests/repository $(call typed,FLAGS)
test-fast: $(READY_DEV) ## Unit tests without the long ones, and one local run [COVERAGE=1]
	@$(PYTEST) $(COVER) -m "not slow and not fault and not long" $(ONE_RUN) tests/plugins tests/core tests/repository $(call typed,FLAGS)
COVER = $(if $(call typed,COVERAGE),--cov)
ONE_RUN := tests/local/test_local.py::test_a_run_completes_and_says_how_well
test-here: $(READY_DEV) ## The tests that need no Slurm [PYTHON=python3.13] [TORCH=2.15.0]
	@$(PYTEST) tests/local tests/plugins tests/core tests/repository $(call typed,FLAGS)
test-on-slurm: $(READY_DEV) ## The tests on a real Slurm, which they start (root) [SLURM=26.05] [SITE=1]
	@$(ON_SLURM) $(PYTEST) tests/slurm $(call typed,FLAGS)
test-slow: $(READY_DEV) ## The tests that `make test` leaves out for time
	@$(PYTEST) -m slow $(call typed,FLAGS)
test-faults: $(READY_DEV) ## The fault table, on a real Slurm (root) [ROW=14] [SLURM=26.05] [SITE=1]
	@$(ON_SLURM) $(PYTEST) tests/slurm/faults -m "" $(addprefix --row=,$(call typed,ROW)) $(call typed,FLAGS)
# More processes than two cores, because most tests wait. In the order of the files: the short tests
# of tests/core fill the gaps at the end. A file's tests stay together, because some share a
# training; all tests on a Slurm, too, so that one process starts one (tests/conftest.py). With
# bytecode each process that a test starts begins sooner.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(PY) -m pytest --numprocesses=$(or $(call typed,WORKERS),$(PROCESSES)) $(DISTRIBUTION)
DISTRIBUTION = --dist=loadscope --no-loadscope-reorder
PROCESSES := 3
# SLURM: 24.11 or 26.05, which is downloaded once (Debian); without it the installed one.
# SITE=1: the cluster has ordinary users, accounts and file clients: tests/slurm/user_site.py.
ON_SLURM = $(if $(call typed,SLURM),$(PY) -m tests.slurm.second "$(SLURM)" && \
	    KIT_TEST_SLURM="$(SLURM)" REQUIRE_SLURM=1) $(if $(call typed,SITE),KIT_TEST_SITE=1 REQUIRE_SLURM=1)
# The slow tests on a Slurm wait long: each process starts one of its own.
test-slow: DISTRIBUTION = --dist=loadfile --no-loadscope-reorder
# Fewer, because Slurm's time limits go on while three nodes start. One by one, in a random order.
test-faults: PROCESSES = 2
test-faults: DISTRIBUTION = --dist=load --maxschedchunk=1
chaos: $(READY_DEV) ## Put random faults into N runs, N=50 SEED=1 [DRAW=7] [SLURM=26.05] [SITE=1] (root)
	@$(ON_SLURM) $(PY) -m tests.slurm.chaos $(or $(call typed,N),50) $(or $(call typed,SEED),1) $(addprefix --draw=,$(call typed,DRAW)) $(call typed,FLAGS)
bench: $(READY_DEV) ## Measure the kit, six minutes [B="B4 B8", some of them] [FLAGS="--json PATH"]
	@$(PY) -m tests.bench "$(or $(call typed,B),usual)" $(call typed,FLAGS)
bench-start: $(READY_DEV) ## Measure starts, restarts and requeues [FLAGS="--json PATH"]
	@$(PY) -m tests.bench start $(call typed,FLAGS)
gpu-check: $(READY_DEV) ## Check and measure the kit on one GPU, eight minutes [FLAGS=--dry-run, on a CPU]
	@$(PY) -m tests.bench gpu --minutes 8 $(call typed,FLAGS)
bench-full: $(READY_DEV) ## All of it
	@$(PY) -m tests.bench full $(call typed,FLAGS)
lint: $(READY_DEV) ## ruff, mypy and shellcheck
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .
	@mkdir -p build/types && ln -sfn ../.. build/types/slurm_job_kit && $(PY) -m mypy
	@shellcheck slurm/ddp.sbatch slurm/*.sh jobs/plugins/*/*.sh .ci/run tests/slurm/*.sh
# Of the commit alone, the wheel from the sdist; kit then runs where nothing else is installed.
release: $(READY_DEV) ## Build sdist and wheel of the commit, and check them; TO=pypi tags it and uploads them
	@rm -rf $(NEW) && mkdir -p $(NEW)/kit && git archive HEAD | tar -xC $(NEW)/kit && $(PY) -m build --no-isolation --outdir $(NEW) $(NEW)/kit
	@$(PY) -m twine check --strict $(NEW)/*.* && $(PY) -m venv $(NEW)/env && $(NEW)/env/bin/pip install -q $(NEW)/*.whl && cd / && $(NEW)/env/bin/kit --help && rm -rf $(NEW)/kit $(NEW)/env
	@$(if $(call typed,TO),git diff --quiet HEAD || { echo "error: commit what you changed" >&2; exit 1; }; git tag "v$(VERSION)" && $(PY) -m twine upload --repository "$(TO)" $(NEW)/*)
NEW := $(CURDIR)/build/release
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
cluster-up: $(READY_DEV) ## Start a real Slurm of four nodes on this machine (root) [SLURM=26.05] [SITE=1]
	@$(ON_SLURM) $(PY) -m tests.slurm up
cluster-down: $(READY_DEV) ## Stop that Slurm
	@$(PY) -m tests.slurm down

$(KIT_VENV)/.ready: requirements.lock
	@$(KIT_BASE) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: $(OLD) " + sys.version)'
	@$(KIT_BASE) -m venv $(KIT_VENV) >&2 && $(PIP) >&2 && touch $@ || { echo "  $(OFFLINE)" >&2; exit 1; }
$(KIT_VENV)/.ready-dev: requirements-dev.lock $(KIT_VENV)/.ready
	@$(PIP) >&2 && touch $@
KIT_BASE := $(or $(call typed,PYTHON),python3)
PIP = $(KIT_VENV)/bin/python -m pip install --disable-pip-version-check -r $(if $(call typed,TORCH),<($(OTHER_TORCH)),$<)
OTHER_TORCH = sed '/^-r/d; s/^torch==.*/torch==$(TORCH)/' $<
OLD := Python 3.11 or newer is needed, $(KIT_BASE) is
OFFLINE := hint: if PyPI cannot be reached, activate an environment with torch and requirements.lock

.DEFAULT:
	@$(if $(wildcard $(PY)),$(KIT) make $@,$(error there is no target $@: make lists them))
help:
	@awk $(KIT_HELP) $(KIT_MK) $(KIT_PLUGINS) Makefile
##: [ ] may be left out. RUN is a run id, job id, directory, or a name: its newest run.

.PHONY: train setup test test-fast test-here \
	test-on-slurm test-slow chaos test-faults bench bench-start bench-full gpu-check \
	lint release cluster-up cluster-down help help-dev
