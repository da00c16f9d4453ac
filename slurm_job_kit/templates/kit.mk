# Targets of the Slurm job kit: `make -f kit.mk` lists them. To use them as `make submit ...`, write
# `include kit.mk` into your Makefile. They need the command kit on PATH: activate its environment.
KIT_MK := $(lastword $(MAKEFILE_LIST))
kit-help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(KIT_MK)
.PHONY: kit-help submit dry-run status logs cancel resume compare export

# What you type goes to the commands unchanged: no expansion by make or by a shell.
export KIT_CONFIG := $(value CONFIG)
export KIT_SET := $(value SET)
export KIT_RUN := $(value RUN)
export KIT_WITH := $(value WITH)
export KIT_CHECKPOINT := $(value CHECKPOINT)
export KIT_FROM := $(value FROM)
unexport CONFIG SET RUN WITH CHECKPOINT FROM
need = $(if $(1),,$(error an argument is missing, as in `$(2)`))

submit: ## Run CONFIG=configs/first.yaml [SET="train.lr=0.05"] [FROM=RUN@step-100]
	$(call need,$(KIT_CONFIG),make submit CONFIG=configs/first.yaml)
	@kit submit "$$KIT_CONFIG" --set="$$KIT_SET" $${KIT_FROM:+--from="$$KIT_FROM"} \
	    $(if $(YES),--yes) $(FLAGS)
dry-run: ## Show what submit would do: sbatch command, script, resolved spec
	$(call need,$(KIT_CONFIG),make dry-run CONFIG=configs/first.yaml)
	@kit submit "$$KIT_CONFIG" --set="$$KIT_SET" --dry-run $(FLAGS)
status: ## List the runs [RUN=name, run id, job id, directory] [FLAGS=--all]
	@kit status $${KIT_RUN:+"$$KIT_RUN"} $(FLAGS)
logs: ## Rank 0's log of a run [RUN=...] [FLAGS="-f --rank 1"]
	@kit logs $${KIT_RUN:+"$$KIT_RUN"} $(FLAGS)
cancel: ## Stop a run: RUN=...
	$(call need,$(KIT_RUN),make cancel RUN=resnet)
	@kit cancel "$$KIT_RUN"
resume: ## Continue a run [RUN=...] [SET="slurm.time=..."] [CODE=1] [CHECKPOINT=best] [YES=1]
	@kit resume $${KIT_RUN:+"$$KIT_RUN"} --set="$$KIT_SET" $(if $(CODE),--code) \
	    $${KIT_CHECKPOINT:+--checkpoint="$$KIT_CHECKPOINT"} $(if $(YES),--yes) $(FLAGS)
compare: ## Compare RUN=... bit for bit with WITH=..., a run without interruption
	$(call need,$(and $(KIT_RUN),$(KIT_WITH)),make compare RUN=... WITH=...)
	@kit compare "$$KIT_RUN" "$$KIT_WITH"
export: ## Weights of a run as .safetensors [RUN=...] [CHECKPOINT=best] [DCP=1: torch's format]
	@kit export $${KIT_RUN:+"$$KIT_RUN"} $${KIT_CHECKPOINT:+--checkpoint="$$KIT_CHECKPOINT"} \
	    $(if $(DCP),--dcp) $(FLAGS)
