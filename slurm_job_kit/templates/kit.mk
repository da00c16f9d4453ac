# Targets of the Slurm job kit: `make -f kit.mk` lists them. To use them as `make submit ...`, write
# `include kit.mk` into your Makefile. They need the command kit on PATH: activate its environment.
KIT_MK := $(lastword $(MAKEFILE_LIST))
kit-help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(KIT_MK)
	@echo "HOST=user@login:DIR runs submit, sweep, status, why, logs, report, cancel and resume there by ssh."
	@echo "For Tab in bash: kit completion bash > ~/.kit.bash, and source that file in ~/.bashrc."
.PHONY: kit-help submit dry-run sweep status why logs report explain cancel resume shell compare export

# What you type goes to the commands unchanged: no expansion by make or by a shell.
export KIT_CONFIG := $(value CONFIG)
export KIT_SET := $(value SET)
export KIT_RUN := $(value RUN)
export KIT_KEY := $(value KEY)
export KIT_WITH := $(value WITH)
export KIT_CHECKPOINT := $(value CHECKPOINT)
export KIT_FROM := $(value FROM)
unexport CONFIG SET RUN KEY WITH CHECKPOINT FROM
# From the command line only: some shells export a variable HOST of their own.
ifeq ($(origin HOST),command line)
export KIT_HOST := $(value HOST)
unexport HOST
endif
need = $(if $(KIT_$(1)),,$(error $(1)=... is missing, as in `$(2)`))

submit: ## Run a spec: CONFIG=configs/first.yaml [SET="train.lr=0.05"] [FROM=RUN@step-100]
	$(call need,CONFIG,make submit CONFIG=configs/first.yaml)
	@kit submit "$$KIT_CONFIG" --set="$$KIT_SET" $${KIT_FROM:+--from="$$KIT_FROM"} \
	    $(if $(YES),--yes) $(FLAGS)
dry-run: ## Show what submit would do with CONFIG=...: sbatch command, script, resolved spec
	$(call need,CONFIG,make dry-run CONFIG=configs/first.yaml)
	@kit submit "$$KIT_CONFIG" --set="$$KIT_SET" --dry-run $(FLAGS)
sweep: ## Many runs as one job array: CONFIG=... [SET="train.lr=0.01,0.1"] [DRY=1] [RETRY=1]
	$(call need,CONFIG,make sweep CONFIG=configs/first.yaml SET=...)
	@kit sweep "$$KIT_CONFIG" --set="$$KIT_SET" $(if $(DRY),--dry-run) $(if $(RETRY),--retry) \
	    $(if $(YES),--yes) $(FLAGS)
status: ## List the runs, or one: [RUN=name, run id, job id, directory] [FLAGS="--all --watch"]
	@kit status $${KIT_RUN:+"$$KIT_RUN"} $(FLAGS)
why: ## Why a run waits, ended or is held, and what to do [RUN=...] [FLAGS=--json]
	@kit why $${KIT_RUN:+"$$KIT_RUN"} $(FLAGS)
logs: ## Rank 0's logs, all attempts [RUN=...] [FLAGS="-f --rank 1"] [FLAGS=--errors: the first error]
	@kit logs $${KIT_RUN:+"$$KIT_RUN"} $(FLAGS)
report: ## Where the time went, a page with plots [RUN="a b"] [FLAGS="--metric eval_loss"]
	@kit report $${KIT_RUN:+--runs="$$KIT_RUN"} $(FLAGS)
explain: ## What keys mean [KEY=train.lr or train] and their values [CONFIG=... or RUN=...]
	@kit explain $${KIT_KEY:+"$$KIT_KEY"} $${KIT_CONFIG:+"$$KIT_CONFIG"} \
	    $${KIT_RUN:+"$$KIT_RUN"} --set="$$KIT_SET"
cancel: ## Stop a run: RUN=...; only resume continues it
	$(call need,RUN,make cancel RUN=resnet)
	@kit cancel "$$KIT_RUN"
resume: ## Continue the newest run [RUN=...] [SET="slurm.time=..."] [CODE=1] [CHECKPOINT=best] [YES=1]
	@kit resume $${KIT_RUN:+"$$KIT_RUN"} --set="$$KIT_SET" $(if $(CODE),--code) \
	    $${KIT_CHECKPOINT:+--checkpoint="$$KIT_CHECKPOINT"} $(if $(YES),--yes) $(FLAGS)
shell: ## A shell beside a running rank: RUN=... [FLAGS="--rank 1 --stack"]
	$(call need,RUN,make shell RUN=resnet)
	@kit shell "$$KIT_RUN" $(FLAGS)
compare: ## Compare RUN=... bit for bit with WITH=..., a run without interruption
	$(call need,RUN,make compare RUN=... WITH=...)
	$(call need,WITH,make compare RUN=... WITH=...)
	@kit compare "$$KIT_RUN" "$$KIT_WITH"
export: ## Weights of the newest run as .safetensors [RUN=...] [CHECKPOINT=best] [DCP=1: torch's format]
	@kit export $${KIT_RUN:+"$$KIT_RUN"} $${KIT_CHECKPOINT:+--checkpoint="$$KIT_CHECKPOINT"} \
	    $(if $(DCP),--dcp) $(FLAGS)
