# Targets of the Slurm job kit. Include this file in your Makefile, or use it by make -f kit.mk.
# The values of CONFIG, SET, RUN and the others reach the commands unchanged: no shell expands them.
export KIT_CONFIG := $(value CONFIG)
export KIT_SET := $(value SET)
export KIT_RUN := $(value RUN)
export KIT_WITH := $(value WITH)
unexport CONFIG SET RUN WITH

.PHONY: submit dry-run status logs cancel resume compare export
submit: ## Run CONFIG=configs/first.yaml [SET="train.lr=0.05"]
	@kit submit "$$KIT_CONFIG" --set="$$KIT_SET" $(FLAGS)
dry-run: ## Show what submit would do
	@kit submit "$$KIT_CONFIG" --set="$$KIT_SET" --dry-run $(FLAGS)
status logs export: ## RUN=name, run id, job id or directory; FLAGS=...
	@kit $@ $${KIT_RUN:+"$$KIT_RUN"} $(FLAGS)
cancel: ## RUN=...
	@kit cancel "$$KIT_RUN"
resume: ## [RUN=...] [SET="slurm.time=..."] [CODE=1] [YES=1]
	@kit resume $${KIT_RUN:+"$$KIT_RUN"} --set="$$KIT_SET" \
	    $(if $(CODE),--code) $(if $(YES),--yes) $(FLAGS)
compare: ## RUN=... WITH=...
	@kit compare "$$KIT_RUN" "$$KIT_WITH"
