# Targets of the Slurm job kit: `make -f kit.mk` lists them. To use them as `make submit ...`, write
# `include kit.mk` into your Makefile. They need the command kit on PATH: activate its environment.
KIT_MK := $(lastword $(MAKEFILE_LIST))
ifneq ($(origin KIT),file)
KIT := kit
KIT_EXAMPLE := configs/first.yaml
endif
kit-help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(KIT_MK)
	@awk '/^##:/ {print substr($$0, 5)}' $(KIT_MK)
	@echo "For Tab in bash: kit completion bash > ~/.kit.bash, and source that file in ~/.bashrc."
##: A variable counts on make's command line only, not in the environment or a Makefile; CONFIG counts in all.
##: 1, yes and true switch YES, CODE, DCP, DRY and RETRY on; 0, no, false and an empty value switch them off.
##: HOST=user@login:DIR runs submit, sweep, status, why, logs, report, cancel and resume there by ssh.

# What each target takes from make's command line.
kit_takes_submit := CONFIG SET FROM YES FLAGS HOST
kit_takes_dry-run := CONFIG SET FLAGS
kit_takes_sweep := CONFIG SET DRY RETRY YES FLAGS HOST
kit_takes_status := RUN FLAGS HOST
kit_takes_why := RUN FLAGS HOST
kit_takes_logs := RUN FLAGS HOST
kit_takes_report := RUN FLAGS HOST
kit_takes_explain := KEY CONFIG RUN SET
kit_takes_shell := RUN FLAGS
kit_takes_cancel := RUN HOST
kit_takes_resume := RUN SET CODE CHECKPOINT YES FLAGS HOST
kit_takes_compare := RUN WITH
kit_takes_rehearse := CONFIG RUN SET FLAGS
kit_takes_export := RUN CHECKPOINT DCP FLAGS
kit_targets := submit dry-run sweep status why logs report explain cancel resume shell compare export rehearse
.PHONY: kit-help $(kit_targets)

# kit_typed NAME: what stands on the command line. The environment and other Makefiles do not count: a
# variable there was meant for another program.
kit_typed = $(if $(filter command,$(origin $(1))),$(value $(1)))
# kit_if NAME,OPTION: the option, where a switch is on.
kit_if = $(if $(filter-out 1 yes true 0 no false,$(call kit_typed,$(1))),$(error \
    $(1)=$(call kit_typed,$(1)): write $(1)=1 or $(1)=0),$(if $(filter 1 yes true,$(call kit_typed,$(1))),$(2)))
kit_need = $(if $(KIT_$(1)),,$(error $(1)=... is missing, as in `$(2)`))
# What the user types goes to the commands unchanged: no expansion by make or by a shell.
override export KIT_CONFIG := $(value CONFIG)
override export KIT_SET := $(call kit_typed,SET)
override export KIT_RUN := $(call kit_typed,RUN)
override export KIT_KEY := $(call kit_typed,KEY)
override export KIT_WITH := $(call kit_typed,WITH)
override export KIT_CHECKPOINT := $(call kit_typed,CHECKPOINT)
override export KIT_FROM := $(call kit_typed,FROM)
ifneq ($(call kit_typed,HOST),)
override export KIT_HOST := $(call kit_typed,HOST)
endif
kit_given := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
# make would give them to the commands, and these to the run.
unexport CONFIG
$(foreach name,$(kit_given),$(eval unexport $(name)))

# A variable that no target takes is refused: CONFG=..., or CODE=1 with submit. Where your own Makefile
# includes this one, only those that another target of the kit takes: you may have more of your own.
kit_goals := $(foreach goal,$(MAKECMDGOALS),$(if $(filter undefined,$(origin kit_takes_$(goal))),,$(goal)))
kit_takes := $(foreach goal,$(kit_goals),$(kit_takes_$(goal)))
kit_known := $(foreach name,$(filter kit_takes_%,$(.VARIABLES)),$($(name)))
ifeq ($(firstword $(MAKEFILE_LIST)),$(KIT_MK))
kit_own := KIT KIT_EXAMPLE
endif
kit_wrong := $(filter-out $(kit_takes) $(kit_own),$(if $(kit_own),$(kit_given),$(filter $(kit_known),$(kit_given))))
ifneq ($(kit_goals),)
ifeq ($(filter-out $(kit_goals),$(MAKECMDGOALS)),)
ifneq ($(kit_wrong),)
$(error make $(kit_goals) takes no $(firstword $(kit_wrong))=...; it takes $(kit_takes))
endif
endif
endif

##@ Run
submit: ## Run a spec: CONFIG=configs/first.yaml [SET="train.lr=0.05"] [FROM=RUN@step-100]
	$(call kit_need,CONFIG,make submit CONFIG=$(KIT_EXAMPLE))
	@$(KIT) submit "$$KIT_CONFIG" --set="$$KIT_SET" $${KIT_FROM:+--from="$$KIT_FROM"} \
	    $(call kit_if,YES,--yes) $(call kit_typed,FLAGS)
dry-run: ## Show what submit would do with CONFIG=...: sbatch command, script, resolved spec
	$(call kit_need,CONFIG,make dry-run CONFIG=$(KIT_EXAMPLE))
	@$(KIT) submit "$$KIT_CONFIG" --set="$$KIT_SET" --dry-run $(call kit_typed,FLAGS)
sweep: ## Many runs as one job array: CONFIG=... [SET="train.lr=0.01,0.1"] [DRY=1] [RETRY=1]
	$(call kit_need,CONFIG,make sweep CONFIG=$(KIT_EXAMPLE) SET=...)
	@$(KIT) sweep "$$KIT_CONFIG" --set="$$KIT_SET" $(call kit_if,DRY,--dry-run) \
	    $(call kit_if,RETRY,--retry) $(call kit_if,YES,--yes) $(call kit_typed,FLAGS)

##@ Look
status: ## List the runs, or one: [RUN=name, run id, job id, directory] [FLAGS="--all --watch"|--nodes]
	@$(KIT) status $${KIT_RUN:+"$$KIT_RUN"} $(call kit_typed,FLAGS)
why: ## Why a run waits, ended or is held, and what to do [RUN=...] [FLAGS=--json]
	@$(KIT) why $${KIT_RUN:+"$$KIT_RUN"} $(call kit_typed,FLAGS)
logs: ## Rank 0's logs, all attempts [RUN=...] [FLAGS="-f --rank 1"] [FLAGS=--errors: the first error]
	@$(KIT) logs $${KIT_RUN:+"$$KIT_RUN"} $(call kit_typed,FLAGS)
report: ## Where the time went, a page with plots [RUN="a b"] [FLAGS="--metric eval_loss"]
	@$(KIT) report $${KIT_RUN:+--runs="$$KIT_RUN"} $(call kit_typed,FLAGS)
explain: ## What keys mean [KEY=train.lr or train] and their values [CONFIG=... or RUN=...]
	@$(KIT) explain $${KIT_KEY:+"$$KIT_KEY"} $${KIT_CONFIG:+"$$KIT_CONFIG"} \
	    $${KIT_RUN:+"$$KIT_RUN"} --set="$$KIT_SET"
shell: ## A shell beside a running rank: RUN=... [FLAGS="--rank 1 --stack"]
	$(call kit_need,RUN,make shell RUN=resnet)
	@$(KIT) shell "$$KIT_RUN" $(call kit_typed,FLAGS)

##@ Change
cancel: ## Stop a run: RUN=...; only resume continues it
	$(call kit_need,RUN,make cancel RUN=resnet)
	@$(KIT) cancel "$$KIT_RUN"
resume: ## Continue the newest run [RUN=...] [SET="slurm.time=..."] [CODE=1] [CHECKPOINT=best] [YES=1]
	@$(KIT) resume $${KIT_RUN:+"$$KIT_RUN"} --set="$$KIT_SET" $(call kit_if,CODE,--code) \
	    $${KIT_CHECKPOINT:+--checkpoint="$$KIT_CHECKPOINT"} $(call kit_if,YES,--yes) \
	    $(call kit_typed,FLAGS)

##@ Results
compare: ## Compare RUN=... bit for bit with WITH=..., a run without interruption
	$(call kit_need,RUN,make compare RUN=... WITH=...)
	$(call kit_need,WITH,make compare RUN=... WITH=...)
	@$(KIT) compare "$$KIT_RUN" "$$KIT_WITH"
rehearse: ## Stop and kill a small training, compare how it ends: CONFIG=... or RUN=... [SET=] [FLAGS=]
	$(if $(KIT_CONFIG)$(KIT_RUN),,$(error missing, as in `make rehearse CONFIG=$(KIT_EXAMPLE)`))
	$(if $(and $(KIT_CONFIG),$(KIT_RUN)),$(error CONFIG and RUN: give one of them))
	@$(KIT) rehearse "$${KIT_RUN:-$$KIT_CONFIG}" --set="$$KIT_SET" $(call kit_typed,FLAGS)
export: ## Weights of the newest run as .safetensors [RUN=...] [CHECKPOINT=best] [DCP=1: torch's format]
	@$(KIT) export $${KIT_RUN:+"$$KIT_RUN"} $${KIT_CHECKPOINT:+--checkpoint="$$KIT_CHECKPOINT"} \
	    $(call kit_if,DCP,--dcp) $(call kit_typed,FLAGS)
