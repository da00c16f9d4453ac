# Every command of the kit; `make` alone lists them. The work is done by Python modules.
.DEFAULT_GOAL := help
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory

# An active environment with torch is used and not changed; otherwise .venv, made from the lock.
ifneq ($(VIRTUAL_ENV)$(CONDA_PREFIX),)
FIND_TORCH := import importlib.util as u; exit(not u.find_spec("torch"))
ACTIVE := $(shell python3 -c '$(FIND_TORCH)' && command -v python3)
endif
PYTHON := $(or $(ACTIVE),.venv/bin/python)
READY := $(if $(ACTIVE),,.venv/.ready)
READY_DEV := $(if $(ACTIVE),,.venv/.ready-dev)
READY_BENCH := $(if $(ACTIVE),,.venv/.ready-bench)
JOBS := $(PYTHON) -m jobs
BY_HAND_NAMES := NNODES NODE_RANK MASTER_ADDR MASTER_PORT

# Which of these a target takes from make's command line, beside those of kit.mk.
TESTS := test test-fast test-here test-on-slurm test-slow test-faults
$(foreach test,$(TESTS),$(eval kit_takes_$(test) := FLAGS WORKERS SLURM SITE ROW))
$(foreach bench,bench bench-start bench-gpu bench-full bench-scale,$(eval kit_takes_$(bench) := B FLAGS))
$(foreach test,test test-fast,$(eval kit_takes_$(test) += COVERAGE))
kit_takes_cluster-up := SLURM SITE
kit_takes_clean := RUN YES FLAGS
kit_takes_train := CONFIG SET NPROC $(BY_HAND_NAMES)
kit_takes_chaos := N SEED DRAW SLURM SITE FLAGS
kit_own := PYTHON READY READY_DEV READY_BENCH VIRTUAL_ENV CONDA_PREFIX
# The targets for runs are those of `kit init`.
KIT := $(JOBS)
KIT_EXAMPLE := configs/resnet.yaml
include slurm_job_kit/templates/kit.mk
$(kit_targets): $(READY)
# As in kit.mk the environment does not count.
$(foreach name,$(filter-out CONFIG,$(kit_known)),$(if $(call kit_typed,$(name)),,$(eval override $(name) :=)))
override export KIT_BENCH := $(value B)
# Python would wait at its end, or not find the packages here.
unexport PYTHONINSPECT PYTHONSAFEPATH
ifeq ($(ACTIVE),)
unexport PYTHONHOME PYTHONPLATLIBDIR
endif

ifneq ($(filter train,$(MAKECMDGOALS)),) # torchrun would take them for its options
$(foreach name,$(filter PET_%,$(.VARIABLES)),$(eval unexport $(name)))
endif

##@ Clean, debug
clean: $(READY) ## List what runs no longer need [RUN=...] [FLAGS="--older-than 30d"]; YES=1 deletes
	@$(JOBS) clean $${KIT_RUN:+"$$KIT_RUN"} $(call kit_if,YES,--yes) $(FLAGS)
train: $(READY) ## Plain torchrun: CONFIG=... [NPROC, NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT]
	$(call kit_need,CONFIG,make train CONFIG=configs/resnet.yaml)
	$(if $(MISSING),$(error missing for several machines: $(MISSING), as in `$(BY_HAND)`))
	@$(REFUSE_BAD_SPEC)
	@$(TORCHRUN) -m trainer "$$KIT_CONFIG" $${KIT_SET:+--set="$$KIT_SET"}
TORCHRUN = $(PYTHON) -m torch.distributed.run --nproc-per-node=$(or $(NPROC),1) \
	$(if $(ON_SEVERAL),$(RENDEZVOUS),--standalone)
# Before torchrun: its traceback would hide the mistake.
REFUSE_BAD_SPEC = if [ -f "$$KIT_CONFIG" ]; then \
	    $(JOBS) explain "$$KIT_CONFIG" --set="$$KIT_SET" >/dev/null; \
	elif [ ! -d "$$KIT_CONFIG" ]; then \
	    echo "error: $$KIT_CONFIG: no such file; CONFIG is a spec or a run directory" >&2; exit 2; \
	fi
RENDEZVOUS = --nnodes=$(NNODES) --node-rank=$(NODE_RANK) \
	--master-addr=$(MASTER_ADDR) --master-port=$(MASTER_PORT)
# One of the four alone would start a run of one machine on each of them. NNODES=1 alone is one.
ON_SEVERAL = $(filter-out 1,$(NNODES))$(NODE_RANK)$(MASTER_ADDR)$(MASTER_PORT)
MISSING = $(if $(ON_SEVERAL),$(strip $(foreach name,$(BY_HAND_NAMES),$(if $($(name)),,$(name)))))
BY_HAND = make train CONFIG=... NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 MASTER_PORT=15000

##@ Work on the kit
setup: $(READY) ## Make the virtual environment .venv from requirements.lock
test: $(READY_DEV) ## All tests; on a real Slurm where its daemons are installed [COVERAGE=1]
	@$(PYTEST) $(COVER) tests/slurm tests/local tests/unit $(FLAGS)
	@$(COVERED)
test-fast: $(READY_DEV) ## Unit tests without the long ones, and one local run [COVERAGE=1]
	@$(PYTEST) $(COVER) -m "not slow and not fault and not long" $(ONE_RUN) tests/unit $(FLAGS)
	@$(COVERED)
COVER = $(call kit_if,COVERAGE,--cov --cov-report=)
COVERED = $(call kit_if,COVERAGE,$(PYTHON) -m tests.covered)
ONE_RUN := tests/local/test_local.py::test_a_run_completes_and_says_how_well
test-here: $(READY_DEV) ## The tests that need no Slurm
	@$(PYTEST) tests/local tests/unit $(FLAGS)
test-on-slurm: $(READY_DEV) ## The tests on a real Slurm, which they start (root) [SLURM=26.05] [SITE=1]
	@$(ON_SLURM) $(PYTEST) tests/slurm $(FLAGS)
test-slow: $(READY_DEV) ## The tests that `make test` leaves out for time
	@$(PYTEST) -m slow $(FLAGS)
test-faults: $(READY_DEV) ## The fault table, on a real Slurm (root) [ROW=14] [SLURM=26.05] [SITE=1]
	@$(ON_SLURM) $(PYTEST) tests/slurm/faults -m "" $(ROW:%=--row=%) $(FLAGS)
# More processes than two cores, because most tests wait; each starts a Slurm of its own. In the
# order of the files: the short tests of tests/unit fill the gaps at the end.
# A file's tests stay together, because some share a training. With bytecode each process that a
# test starts begins sooner.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(PYTHON) -m pytest --numprocesses=$(or $(WORKERS),$(PROCESSES)) $(DISTRIBUTION)
DISTRIBUTION = --dist=loadfile --no-loadscope-reorder
PROCESSES := 3
# SLURM: 24.11 or 26.05, which is downloaded once (Debian); without it the installed one.
# SITE=1: the cluster has ordinary users, accounts and file clients: tests/slurm/user_site.py.
ON_SLURM = $(if $(SLURM),$(PYTHON) -m tests.slurm.second "$(SLURM)" && \
	    KIT_TEST_SLURM="$(SLURM)" REQUIRE_SLURM=1) $(if $(SITE),KIT_TEST_SITE=1 REQUIRE_SLURM=1)
# Fewer, because Slurm's time limits go on while three nodes start. One by one, in a random order.
test-faults: PROCESSES = 2
test-faults: DISTRIBUTION = --dist=load --maxschedchunk=1
chaos: $(READY_DEV) ## Put random faults into N runs, N=50 SEED=1 [DRAW=7] [SLURM=26.05] [SITE=1] (root)
	@$(ON_SLURM) $(PYTHON) -m tests.slurm.chaos $(or $(N),50) $(or $(SEED),1) $(DRAW:%=--draw=%) $(FLAGS)
bench: $(READY_DEV) ## Measure the kit, seven minutes [B="B4 B8", some of them] [FLAGS="--json PATH"]
	@$(PYTHON) -m tests.bench "$${KIT_BENCH:-usual}" $(FLAGS)
bench-start: $(READY_DEV) ## Measure starts, restarts and requeues [FLAGS="--json PATH"]
	@$(PYTHON) -m tests.bench start $(FLAGS)
bench-gpu: $(READY_DEV) ## Measure the kit on one GPU; where there is none, print that
	@$(PYTHON) -m tests.bench gpu $(FLAGS)
bench-full: $(READY_BENCH) ## All of it, and other libraries beside the kit, which it installs
	@$(PYTHON) -m tests.bench full $(FLAGS)
bench-scale: $(READY_DEV) ## 10,000 simulated nodes; 2 to 64 ranks on a real Slurm (root)
	@$(PYTHON) -m tests.scale $(FLAGS)
lint: $(READY_DEV) ## ruff, mypy and shellcheck
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check .
	@mkdir -p build/types && ln -sfn ../.. build/types/slurm_job_kit && $(PYTHON) -m mypy
	@shellcheck slurm/ddp.sbatch slurm/agent.sh .ci/run tests/slurm/*.sh
schema: $(READY) ## Write configs/schema.json and the tables of the docs that come from code
	@$(PYTHON) -m jobs.config.schema
cluster-up: $(READY_DEV) ## Start a real Slurm of four nodes on this machine (root) [SLURM=26.05] [SITE=1]
	@$(ON_SLURM) $(PYTHON) -m tests.slurm up
cluster-down: $(READY_DEV) ## Stop that Slurm
	@$(PYTHON) -m tests.slurm down

.venv/.ready: requirements.lock
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: $(OLD) " + sys.version)'
	@python3 -m jobs.commands.packages $< >&2 && touch $@
.venv/.ready-dev: requirements-dev.lock .venv/.ready
	@python3 -m jobs.commands.packages $< >&2 && touch $@
.venv/.ready-libraries: requirements-bench.lock .venv/.ready-dev
	@python3 -m jobs.commands.packages $< >&2 && touch $@
.venv/.ready-bench: requirements-torchx.lock .venv/.ready-libraries
	@python3 -m venv .venv/torchx && .venv/torchx/bin/pip install --quiet \
	    --disable-pip-version-check -r requirements-torchx.lock >&2 && touch $@
OLD := Python 3.11 or newer is needed, python3 is

completion: $(READY) ## Print a script with which Tab completes runs, specs and keys in bash
	@$(JOBS) completion bash
help: ## Print this list
	@awk -F ':.*## ' '/^##@/ {print "\n" substr($$0, 5)} \
	    /^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(KIT_MK) Makefile
	@echo; awk '/^##:/ {print substr($$0, 5)}' Makefile $(KIT_MK)
##: [ ] may be left out. RUN is a run id, job id, directory, or a name: its newest run.
##: For Tab in bash: make completion > ~/.kit.bash, and the line `source ~/.kit.bash` in ~/.bashrc.

.PHONY: clean train setup test test-fast test-here \
	test-on-slurm test-slow chaos test-faults bench bench-start bench-full bench-gpu \
	bench-scale lint schema cluster-up cluster-down completion help
